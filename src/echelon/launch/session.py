"""The launcher's end of a conversation with launch/probe.py on a host, and which Python to have it with."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from echelon.errors import RemoteError
from echelon.launch.probe import MARK
from echelon.launch.ssh import Remote, explain_failure
from echelon.runfolder import parse_json, to_json

INSTALLED_PYTHON = "~/.echelon/env/bin/python"
"""Where `--install` puts it."""
_FIND_PYTHON = """
for python; do
    case $python in '~/'*) python=$HOME/${python#??} ;; esac
    if [ -x "$python" ]; then
        found="$found $python"
        "$python" -c 'import echelon' 2> /dev/null && { echo "echelon-python:$python"; exit 0; }
    fi
done
echo "${found:-none}"
exit 3
"""
_CLOCK_ROUNDS = 5


def find_python(remote: Remote, override: str | None = None) -> str:
    """The Python with Echelon on a host: `override`, or the path of the one here, or what `--install` made.

    Raises RemoteError where there is none that can import Echelon.
    """
    places = [override] if override else [sys.executable, INSTALLED_PYTHON]
    completed = remote.run(["sh", "-c", _FIND_PYTHON, "sh", *places], timeout_s=60)
    lines = completed.stdout.decode(errors="replace").splitlines()
    found = [line.removeprefix("echelon-python:") for line in lines if line.startswith("echelon-python:")]
    if completed.status == 0 and found:
        return found[0]
    raise RemoteError(
        remote.host,
        "failed",
        f"no Python with Echelon in {' or '.join(places)}",
        "--install puts it there, or name it with --python",
    )


@dataclass(frozen=True)
class ClockOffset:
    """How far a host's clock is ahead of the one here."""

    seconds: float
    uncertainty_s: float
    """Half the shortest round trip."""


class Session:
    """A probe on a host. Questions that cannot be answered raise RemoteError; the probe ends with its session."""

    def __init__(self, remote: Remote, python: Sequence[str]) -> None:
        self._remote = remote
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the session
        try:
            self._process = remote.start(
                [*python, "-u", "-m", "echelon.launch.probe"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
            )
        except BaseException:
            self._stderr.close()
            raise
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, question: str, timeout_s: float, **values: Any) -> Any:
        """The probe's answer to one question, as JSON gives it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(to_json({"ask": question, **values}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._failure() from None
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise RemoteError(
                self._remote.host, "timed out", f"no answer about {question!r} within {timeout_s:g} seconds"
            ) from None
        if line is None:
            raise self._failure()
        answer = parse_json(line)
        if "error" in answer:
            raise RemoteError(self._remote.host, "failed", f"{question!r} failed there: {answer['error']}")
        return answer["answer"]

    def clock_offset(self) -> ClockOffset:
        """The host's clock against the one here, from the quickest of a few exchanges."""
        exchanges = []
        for _ in range(_CLOCK_ROUNDS):
            sent = time.time()
            there = float(self.ask("clock", 10))
            exchanges.append((sent, there, time.time()))
        return offset_of(exchanges)

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it may have ended already
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(2)
        self._stderr.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                text = line.decode(errors="replace")
                if text.startswith(MARK):
                    self._answers.put(text.removeprefix(MARK))
        self._answers.put(None)

    def _failure(self) -> RemoteError:
        status = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")
        host = self._remote.host
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit status {status}"
        return explain_failure(host, self._remote.by_hand, status, said) or RemoteError(
            host, "failed", f"Echelon cannot run there: {last}", "--install puts the right one there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def offset_of(exchanges: Sequence[tuple[float, float, float]]) -> ClockOffset:
    """From times (sent here, read there, received here): the quickest exchange leaves the least to doubt."""
    sent, there, received = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    return ClockOffset(there - (sent + received) / 2, (received - sent) / 2)
