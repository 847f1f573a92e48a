"""Programs on the hosts of a lab, for tests: run and wait, or leave running."""

from __future__ import annotations

from pathlib import Path

from echelon.lab.lab import Lab


def python(lab: Lab, host: str, program: str, *arguments: str) -> str:
    """What a Python program prints on a host."""
    return lab.run(host, ["python3", "-c", program, *arguments]).stdout.strip()


def leave_running(lab: Lab, host: str, program: str) -> None:
    """Start a Python program on a host, and do not wait for it."""
    detach = 'python3 -c "$0" > /dev/null 2>&1 < /dev/null &'
    lab.run(host, ["setsid", "sh", "-c", detach, program])


def disk_of(lab: Lab, host: str) -> Path:
    """A host's disk, seen from here."""
    return lab.disk.parent / "disks" / host
