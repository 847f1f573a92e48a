"""A step's slots dealt by speed: workers that were faster lately get more of them.

Every worker deals for all, from the same table of seconds, and so comes to the same shares. They have no effect on the
result: an exact sum does not depend on who computed what.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

_WORTH = 0.95
"""Slots are dealt anew if a step then takes less than this share of its time."""
_REMEMBERED = 5
"""The median of these steps counts, so a pause in one step changes nothing."""
_HOPE = 0.99
"""A worker without slots is taken to be faster by this with each step, so that it gets another chance: the slower it
was, the later."""


class OwnSpeed:
    """How long this worker takes for a slot."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._hope = 1.0

    def note(self, seconds: float, num_slots: int) -> None:
        """Take in a step in which the worker computed `num_slots` slots in `seconds`."""
        if num_slots:
            self._seconds.append(seconds / num_slots)
            self._hope = 1.0
        else:
            self._hope *= _HOPE

    @property
    def seconds_per_slot(self) -> float:
        """Zero as long as it has computed none."""
        return self._hope * statistics.median(self._seconds) if self._seconds else 0.0


def deal(shares: Sequence[int], seconds_per_slot: Sequence[float]) -> list[int]:
    """How many slots each worker gets in the next step, given how many it has now.

    With these, the step is as short as it can be; but what would gain next to nothing is left as it is. A worker whose
    speed is not known is tried as if it were as fast as any.
    """
    known = [seconds for seconds in seconds_per_slot if seconds > 0]
    if not known:
        return list(shares)
    seconds_per_slot = [seconds if seconds > 0 else min(known) for seconds in seconds_per_slot]
    dealt = [0] * len(shares)
    for _ in range(sum(shares)):
        ends = [(count + 1) * seconds for count, seconds in zip(dealt, seconds_per_slot, strict=True)]
        dealt[ends.index(min(ends))] += 1
    is_worth_it = longest(dealt, seconds_per_slot) < _WORTH * longest(shares, seconds_per_slot)
    return dealt if is_worth_it else list(shares)


def longest(shares: Sequence[int], seconds_per_slot: Sequence[float]) -> float:
    """Seconds until the last worker has computed its slots."""
    return max(count * seconds for count, seconds in zip(shares, seconds_per_slot, strict=True))
