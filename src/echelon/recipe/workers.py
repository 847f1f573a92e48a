"""How many workers: a number, or a range such as `1:4` within which a run may lose some; who has which slots; and how
many of them a host has."""

from __future__ import annotations

import re
from dataclasses import dataclass

EXPECTED = 'it must be a whole number above 0, a range such as "1:4", or "auto"'
ANY_NUMBER = 1 << 20


@dataclass(frozen=True)
class WorkerRange:
    """The fewest and the most workers that a run may have; equal if the number is fixed."""

    fewest: int
    most: int
    is_auto: bool = False
    """Whether the fastest number is to be measured; without a measurement, one worker for each core."""

    def __str__(self) -> str:
        if self.is_auto:
            return "auto"
        return str(self.most) if self.is_fixed else f"{self.fewest}:{self.most}"

    @property
    def is_fixed(self) -> bool:
        return self.fewest == self.most

    def at_start(self, cores: int) -> int:
        """The number to start with: as many as allowed, but at most one for each core."""
        return min(self.most, max(self.fewest, cores))


def parse_workers(value: object) -> WorkerRange:
    """The range that `4`, `"4"`, `"1:4"` or `"auto"` means; raises ValueError if it means none."""
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


def workers_on_each_host(local_ranks: list[int]) -> int | None:
    """How many workers each host has, ranks lying host by host; None if they do not all have the same number."""
    k = max(local_ranks) + 1
    expected = [rank % k for rank in range(len(local_ranks))]
    return k if local_ranks == expected and len(local_ranks) % k == 0 else None


def level_size(local_ranks: list[int]) -> int:
    """How many workers each host has if summing host by host makes sense, and 1 otherwise."""
    num_local = workers_on_each_host(local_ranks)
    return num_local if num_local is not None and num_local < len(local_ranks) else 1
