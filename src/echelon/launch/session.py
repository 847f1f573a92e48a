"""The launcher's end of a conversation with launch/probe.py on a host, and which Python to have it with."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echelon.errors import RemoteError
from echelon.launch.dialogue import Dialogue
from echelon.launch.machine import own_versions
from echelon.launch.ssh import Remote

INSTALLED_PYTHON = "~/.echelon/env/bin/python"
"""Where `--install` puts it."""
_SHOW_VERSIONS = """
from echelon.launch.machine import own_versions
versions = own_versions()
print(versions.source, str(versions.torch).partition("+")[0])
"""
_FIND_PYTHON = """
versions=$1
code=$2
shift 2
for python; do
    case $python in '~/'*) python=$HOME/${python#??} ;; esac
    "$python" -c 'import echelon' 2> /dev/null || continue
    [ "$("$python" -c "$code" 2> /dev/null)" = "$versions" ] && { found=$python; break; }
    found=${found:-$python}
done
echo "echelon-python:$found"
"""
_CLOCK_ROUNDS = 5
_CLOCK_S = 10.0


def find_python(remote: Remote, override: str | None = None) -> str:
    """The Python with Echelon on a host: `override`, or the path of the one here, or what `--install` made.

    Of several the one with the same code and torch as here. Raises RemoteError if none can import Echelon.
    """
    places = [override] if override else [sys.executable, INSTALLED_PYTHON]
    here = own_versions()
    versions = f"{here.source} {str(here.torch).partition('+')[0]}"
    completed = remote.run(["sh", "-c", _FIND_PYTHON, "sh", versions, _SHOW_VERSIONS, *places], timeout_s=60)
    lines = completed.stdout.decode(errors="replace").splitlines()
    found = [line.removeprefix("echelon-python:") for line in lines if line.startswith("echelon-python:")]
    if found and found[0]:
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


class ProbeSession(Dialogue):
    """A probe on a host."""

    def __init__(self, remote: Remote, python: Sequence[str]) -> None:
        super().__init__(remote, [*python, "-m", "echelon.launch.probe"])

    def ask(self, question: str, timeout_s: float, **values: Any) -> Any:
        """The probe's answer to one question, as JSON gives it."""
        self.send({"ask": question, **values})
        return self.answer(f"{question!r}", timeout_s)["answer"]

    def clock_offset(self) -> ClockOffset:
        """The host's clock against the one here, from the quickest of a few exchanges."""
        exchanges = []
        for _ in range(_CLOCK_ROUNDS):
            sent = time.time()
            there = float(self.ask("clock", _CLOCK_S))
            exchanges.append((sent, there, time.time()))
        return offset_of(exchanges)


def offset_of(exchanges: Sequence[tuple[float, float, float]]) -> ClockOffset:
    """The offset from times (sent here, read there, received here): the quickest exchange is the most certain."""
    sent, there, received = min(exchanges, key=lambda exchange: exchange[2] - exchange[0])
    return ClockOffset(there - (sent + received) / 2, (received - sent) / 2)
