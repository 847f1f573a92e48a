"""Sets of hosts as text."""

from __future__ import annotations

import pytest

from echelon.agent.ranges import format_ranges, parse_ranges


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((), ""), ((7,), "7"), ((0, 1, 2), "0-2"), ((0, 2, 3, 9), "0,2-3,9"), (tuple(range(1000)), "0-999")],
)
def test_ranges_are_read_as_they_were_written(numbers: tuple[int, ...], text: str) -> None:
    assert format_ranges(frozenset(numbers)) == text
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize(
    "text",
    ["a", "1,", "1-", "-1", "3-1", "2,1", "1,1", "0-5,5", "65536", "0-4000000000", "0-1-2", [1, 2], None],
)
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_ranges(text)
