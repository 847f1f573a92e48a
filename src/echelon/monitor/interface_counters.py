"""Bytes at the network interfaces, as the kernel counts them in this process's network namespace."""

from __future__ import annotations

import os

_TABLE = "/proc/self/net/dev"
_RECEIVED, _SENT = 0, 8
"""Columns after an interface's name."""


def read_interfaces() -> dict[str, tuple[int, int]]:
    """Bytes received and sent by every interface since it came up; empty if the system does not count."""
    try:
        with open(_TABLE, "rb") as file:
            return parse_interfaces(file.read().decode())
    except OSError:
        return {}


def parse_interfaces(table: str) -> dict[str, tuple[int, int]]:
    """The kernel's table of interfaces: two lines of headings, then one line per interface."""
    counts = {}
    for line in table.splitlines()[2:]:
        name, _, columns = line.partition(":")
        numbers = columns.split()
        counts[name.strip()] = int(numbers[_RECEIVED]), int(numbers[_SENT])
    return counts


class InterfaceCounter:
    """Bytes that one interface has moved since the last call; the table stays open, so a call costs microseconds."""

    def __init__(self, name: str) -> None:
        self._name = f"{name}:".encode()
        self._descriptor = os.open(_TABLE, os.O_RDONLY | os.O_CLOEXEC)
        self._last = self._read()

    def _read(self) -> tuple[int, int]:
        table = os.pread(self._descriptor, 1 << 16, 0)
        for line in table.split(b"\n"):
            if line.lstrip().startswith(self._name):
                columns = line.partition(b":")[2].split()
                return int(columns[_RECEIVED]), int(columns[_SENT])
        return 0, 0

    def take(self) -> tuple[int, int]:
        """Bytes received and sent since the last call; an interface that was replaced starts from zero."""
        last, self._last = self._last, self._read()
        return max(0, self._last[0] - last[0]), max(0, self._last[1] - last[1])


def open_counter(name: str) -> InterfaceCounter | None:
    """A counter of that interface; None if there is no such interface, or the system does not count."""
    return InterfaceCounter(name) if name in read_interfaces() else None
