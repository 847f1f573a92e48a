"""How many workers: a number, or a range such as `1:4` within which a run may lose some; and who has which slots."""

from __future__ import annotations

import re
from dataclasses import dataclass

EXPECTED = 'it must be a whole number above 0, a range such as "1:4", or "auto"'
ANY_NUMBER = 1 << 20


@dataclass(frozen=True)
class WorkerRange:
    """The fewest and the most workers that a run may have; equal where the number is fixed."""

    fewest: int
    most: int
    is_auto: bool = False
    """Whether the fastest number is to be found by measurement; where nobody measures, there is one for each core."""

    def __str__(self) -> str:
        if self.is_auto:
            return "auto"
        return str(self.most) if self.fewest == self.most else f"{self.fewest}:{self.most}"

    def at_start(self, cores: int) -> int:
        """As many as allowed, but not more than there are cores to run them."""
        return min(self.most, max(self.fewest, cores))

    def after_a_failure(self, workers: int) -> int:
        """One fewer, where that is allowed."""
        return max(self.fewest, workers - 1)


def parse_workers(value: object) -> WorkerRange:
    """The range that `4`, `"4"`, `"1:4"` or `"auto"` means; raises ValueError where it means none."""
    if value == "auto":
        return WorkerRange(1, ANY_NUMBER, is_auto=True)
    match = None if isinstance(value, bool) else re.fullmatch(r"([0-9]+)(?::([0-9]+))?", str(value).strip())
    if match is None:
        raise ValueError(EXPECTED)
    fewest, most = int(match[1]), int(match[2] or match[1])
    if not 0 < fewest <= most:
        raise ValueError(EXPECTED)
    return WorkerRange(fewest, most)


def share_of(num_slots: int, rank: int, size: int) -> range:
    """The slots of worker `rank` of `size`: consecutive, and at most one more than any other worker's."""
    return range(rank * num_slots // size, (rank + 1) * num_slots // size)
