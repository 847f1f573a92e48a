"""The processes of a host, as the outer machine sees them in /proc."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from echelon.errors import LabError
from echelon.lab.cgroup import send

_PATIENCE_S = 20.0


def find_first(processes: Sequence[int]) -> int | None:
    """The host's process number 1, by the number it has here; None where the host is not running."""
    return next((process for process in processes if _status(process, "NSpid").split()[1:] == ["1"]), None)


def parent_of(process: int) -> int:
    return int(_status(process, "PPid") or 0)


def is_stopped(process: int) -> bool:
    return _status(process, "State")[:1] in ("T", "t")


def _status(process: int, key: str) -> str:
    """A line of /proc/N/status; empty where the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{key}:")), "")


def listens(process: int, port: int) -> bool:
    """Whether anybody listens on a port of the network that the process is in."""
    lines = Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]
    sockets = [line.split()[1:4] for line in lines]
    return any(local.endswith(f":{port:04X}") and state == "0A" for local, _, state in sockets)


def has_mount(process: int, point: Path) -> bool:
    """Whether something is mounted on `point`, as the process sees it."""
    lines = Path(f"/proc/{process}/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(point) for line in lines)


def stop_all(list_processes: Callable[[], list[int]]) -> None:
    """Stop processes, and those that they start meanwhile."""
    deadline = time.monotonic() + _PATIENCE_S
    while moving := [process for process in list_processes() if not _is_still(process)]:
        if time.monotonic() > deadline:
            raise LabError(f"process {moving[0]} does not stop")
        send(signal.SIGSTOP, moving)
        time.sleep(0.002)


def _is_still(process: int) -> bool:
    return _status(process, "State")[:1] in ("T", "t", "Z", "X", "")
