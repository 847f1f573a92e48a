"""Sets of hosts in heartbeats, as text: "0-41,43-999"."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_HOSTS = 2**16
"""What the handshake can number (wire.py)."""


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges; `parse_ranges` reads back what is ascending, without repetition."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def parse_ranges(text: object) -> tuple[int, ...]:
    """Return the numbers, ascending; ValueError for anything else than `format_ranges` writes."""
    if not isinstance(text, str):
        raise ValueError("no ranges of hosts")
    numbers: list[int] = []
    for span in text.split(",") if text else ():
        first, dash, last = span.partition("-")
        begin, end = int(first), int(last if dash else first)
        if not (numbers[-1] if numbers else -1) < begin <= end < _MOST_HOSTS:
            raise ValueError("hosts out of order")
        numbers.extend(range(begin, end + 1))
    return tuple(numbers)
