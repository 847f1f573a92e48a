"""Bytes at the network cards, as the kernel counts them in this process's network namespace."""

from __future__ import annotations

import os

_TABLE = "/proc/self/net/dev"
_RECEIVED, _SENT = 0, 8
"""Columns after a card's name."""


def read_cards() -> dict[str, tuple[int, int]]:
    """Bytes received and sent by every card since it came up; nothing where the system does not say."""
    try:
        with open(_TABLE, "rb") as file:
            return parse_cards(file.read().decode())
    except OSError:
        return {}


def parse_cards(table: str) -> dict[str, tuple[int, int]]:
    """The kernel's table of cards: two lines of headings, then one line a card."""
    cards = {}
    for line in table.splitlines()[2:]:
        name, _, columns = line.partition(":")
        numbers = columns.split()
        cards[name.strip()] = int(numbers[_RECEIVED]), int(numbers[_SENT])
    return cards


class CardCounter:
    """What one card has moved since it was last asked; its table stays open, so that asking costs microseconds."""

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
        """Bytes received and sent since the last call; a card that was replaced begins anew."""
        last, self._last = self._last, self._read()
        return max(0, self._last[0] - last[0]), max(0, self._last[1] - last[1])


def open_card(name: str) -> CardCounter | None:
    """A counter of that card; None where it is not there, or the system does not count."""
    return CardCounter(name) if name in read_cards() else None
