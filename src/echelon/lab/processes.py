"""The processes of a host, as the outer machine sees them in /proc. What has ended reads as empty."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from echelon.errors import LabError

_PATIENCE_S = 20.0


def find_first(processes: Sequence[int]) -> int | None:
    """The host's process number 1, by the number it has here; None if the host is not running."""
    return next((process for process in processes if _status(process, "NSpid").split()[1:] == ["1"]), None)


def find_parent(process: int) -> int | None:
    parent = _status(process, "PPid")
    return int(parent) if parent else None


def is_stopped(process: int) -> bool:
    return _status(process, "State")[:1] in ("T", "t")


def listens(process: int, port: int) -> bool:
    """Whether anything listens on a port of the network that `process` is in."""
    sockets = [line.split()[1:4] for line in _read(process, "net/tcp")[1:]]
    return any(local.endswith(f":{port:04X}") and state == "0A" for local, _, state in sockets)


def has_mount(process: int, point: Path) -> bool:
    """Whether something is mounted on `point`, as the process sees it."""
    return any(line.split()[4] == str(point) for line in _read(process, "mountinfo"))


def send(number: signal.Signals, processes: Sequence[int]) -> None:
    """Signal processes; those that have ended meanwhile need none."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def stop_all(list_processes: Callable[[], list[int]]) -> None:
    """Stop processes, and those that they start meanwhile."""
    deadline = time.monotonic() + _PATIENCE_S
    while moving := [process for process in list_processes() if _status(process, "State")[:1] not in "TtZX"]:
        if time.monotonic() > deadline:
            raise LabError(f"process {moving[0]} does not stop")
        send(signal.SIGSTOP, moving)
        time.sleep(0.002)


def _status(process: int, key: str) -> str:
    lines = _read(process, "status")
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:")), "")


def _read(process: int, name: str) -> list[str]:
    """The lines of /proc/N/NAME."""
    try:
        return Path(f"/proc/{process}/{name}").read_text().splitlines()
    except OSError:
        return []
