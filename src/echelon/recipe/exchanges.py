"""What "auto" chooses from, and by which rule: the same for those who measure a line and for those who plan one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeVar, get_args

from echelon.recipe.schema import ExchangeClass

ExchangeChoice = Literal["all_reduce", "compressed", "low_rank", "local"]
CLASSES: dict[ExchangeChoice, ExchangeClass] = {
    "all_reduce": "exact",
    "compressed": "compressed",
    "low_rank": "low_rank",
    "local": "local",
}
"""From the one that learns the same as one worker to the one that differs most."""
NAMES: tuple[ExchangeChoice, ...] = get_args(ExchangeChoice)
WORTH_IT = 0.95
"""A step must be this much shorter before more hosts, or an exchange that is less exact, are taken for it."""
Key = TypeVar("Key")


def names_of(allowed: Collection[ExchangeClass]) -> list[ExchangeChoice]:
    """The exchanges of some classes."""
    return [name for name in NAMES if CLASSES[name] in allowed]


def most_exact(step_s: Mapping[Key, float]) -> Key:
    """The first of these exchanges, ordered from the most exact, that is nearly as fast as the fastest."""
    fastest_s = min(step_s.values())
    return next(key for key, seconds in step_s.items() if WORTH_IT * seconds <= fastest_s)
