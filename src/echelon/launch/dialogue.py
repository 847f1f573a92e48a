"""The launcher's end of a conversation with a program of Echelon's on a host: lines of JSON there and back."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from echelon.errors import RemoteError
from echelon.launch.ssh import Remote, explain_failure
from echelon.runfolder import parse_json, to_json

MARK = "echelon-answer "
"""The prefix of an answer's line: login scripts on the host may print lines of their own."""
_LEAVE_S = 3.0


def say(answer: dict[str, Any]) -> None:
    """The host's end: answer the launcher; `{"error": TEXT}` if a request fails."""
    sys.stdout.write(MARK + to_json(answer) + "\n")
    sys.stdout.flush()


def parse_answer(host: str, line: bytes, about: str = "") -> dict[str, Any]:
    """A host's answer, a JSON object; RemoteError if it is anything else, or reports a failure."""
    try:
        answer = parse_json(line)
    except ValueError:
        answer = None
    match answer:
        case {"error": problem}:
            raise RemoteError(host, "failed", f"{about}{problem}")
        case dict():
            return answer
    raise RemoteError(host, "failed", f"{about}it answers {line[:100].decode(errors='replace')!r}")


class Dialogue:
    """A command on a host that answers by `say`. What fails there or on the way raises RemoteError.

    The command must end when its input does. `on_line` gets what it prints beside its answers.
    """

    def __init__(
        self, remote: Remote, command: Sequence[str], on_line: Callable[[str], None] = lambda line: None
    ) -> None:
        self.host = remote.host
        self._remote = remote
        self._on_line = on_line
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the dialogue
        try:
            self._process = remote.start(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr
            )
        except BaseException:
            self._stderr.close()
            raise
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, message: dict[str, Any]) -> None:
        """Send one line."""
        self.write(to_json(message).encode() + b"\n")

    def write(self, data: bytes) -> None:
        """Send raw bytes."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except OSError:
            self.answer("the transfer")  # which says why it left
            raise self._failure() from None

    def answer(self, question: str, timeout_s: float | None = None) -> dict[str, Any]:
        """The next answer; `question` is how errors call what was asked."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # if it has ended, what it said last is still to be read
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise RemoteError(
                self.host, "timed out", f"no answer about {question} within {timeout_s:g} seconds"
            ) from None
        if line is None:
            raise self._failure()
        return parse_answer(self.host, line, f"{question} failed there: ")

    def close(self) -> None:
        """End it; the program there notices that its input has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it may have ended already
            self._process.stdin.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_LEAVE_S)
        self._stderr.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            for line in stdout:
                if line.startswith(MARK.encode()):
                    self._answers.put(line.removeprefix(MARK.encode()))
                else:
                    self._on_line(line.decode(errors="replace").rstrip())
        self._answers.put(None)

    def _failure(self) -> RemoteError:
        """The error for a program that ended without an answer."""
        status = self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        return explain_failure(self.host, self._remote.by_hand, status, said) or RemoteError(
            self.host,
            "failed",
            f"Echelon cannot run there: {lines[-1] if lines else f'exit status {status}'}",
            "--install puts the right one there",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
