"""How many workers: a number, or a range such as `1:4` within which a run may lose some and go on."""

from __future__ import annotations

import re
from dataclasses import dataclass

EXPECTED = 'it must be a whole number above 0, or a range such as "1:4"'


@dataclass(frozen=True)
class WorkerRange:
    """The fewest and the most workers that a run may have; equal where the number is fixed."""

    fewest: int
    most: int

    def __str__(self) -> str:
        return str(self.most) if self.fewest == self.most else f"{self.fewest}:{self.most}"

    def at_start(self, cores: int) -> int:
        """As many as allowed, but not more than there are cores to run them."""
        return min(self.most, max(self.fewest, cores))

    def after_a_failure(self, workers: int) -> int:
        """One fewer, where that is allowed."""
        return max(self.fewest, workers - 1)


def parse_workers(value: object) -> WorkerRange:
    """The range that `4`, `"4"` or `"1:4"` means; raises ValueError where it means none."""
    match = None if isinstance(value, bool) else re.fullmatch(r"([0-9]+)(?::([0-9]+))?", str(value).strip())
    if match is None:
        raise ValueError(EXPECTED)
    fewest, most = int(match[1]), int(match[2] or match[1])
    if not 0 < fewest <= most:
        raise ValueError(EXPECTED)
    return WorkerRange(fewest, most)
