"""Random decisions that come out the same on every machine and every version of Python.

`random.Random.random` is promised never to change for a seed; `choice` and `shuffle` are not. So only the
first is used, and everything else is made of it here.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

T = TypeVar("T")


class Weighted(Generic[T]):
    """Things to draw from, each with a whole number for its weight."""

    def __init__(self, *weighted: tuple[int, T]) -> None:
        self.items = tuple(item for _, item in weighted)
        self.bounds = tuple(accumulate(weight for weight, _ in weighted))


class Chance:
    """A stream of decisions that depends on nothing but the seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def happens(self, percent: int) -> bool:
        """True in `percent` of a hundred cases."""
        return self._random() * 100 < percent

    def below(self, bound: int) -> int:
        """A whole number from 0 to `bound` - 1."""
        return int(self._random() * bound)

    def between(self, first: int, last: int) -> int:
        """A whole number from `first` to `last`, both included."""
        return first + self.below(last - first + 1)

    def pick(self, items: Sequence[T]) -> T:
        """Any one of the items."""
        return items[int(self._random() * len(items))]

    def draw(self, weighted: Weighted[T]) -> T:
        """One of the items, by weight."""
        bounds = weighted.bounds
        return weighted.items[bisect_right(bounds, int(self._random() * bounds[-1]))]
