"""The trials of a search, as its records tell them: settings, results and failures, each written when it is known.

A killed search has lost nothing that is in the file; half a line at its end is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from echelon.monitor.records import Record, is_number
from echelon.search.varied_keys import Values


@dataclass(frozen=True)
class RungResult:
    """What a trial had reached at a rung."""

    step: int
    value: float
    """The best score on the validation set so far."""


@dataclass
class Trial:
    """One training with settings of its own."""

    number: int
    values: Values
    rungs: tuple[int, ...]
    """The steps at which it is compared; the last is its length."""
    every: int
    """Steps between two scorings."""
    results: dict[int, RungResult] = field(default_factory=dict)
    """By rung, counted from 0."""
    failure: str | None = None

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"trial-{self.number:02}"

    @property
    def furthest(self) -> int:
        """The last rung at which it has a result; -1 if there is none."""
        return max(self.results, default=-1)

    @property
    def step(self) -> int:
        """The step of its last result."""
        return self.results[self.furthest].step if self.results else 0

    @property
    def value(self) -> float | None:
        """Its last result."""
        return self.results[self.furthest].value if self.results else None

    def record(self) -> dict[str, Any]:
        """What is written when it begins."""
        return {
            "trial": self.number,
            "values": self.values,
            "rungs": list(self.rungs),
            "every": self.every,
        }


def trials_in(records: Iterable[Record]) -> list[Trial]:
    """The trials that a search's records tell of; what is no record of a search is passed over."""
    found: dict[int, Trial] = {}
    for record in records:
        match record:
            case {
                "kind": "trial",
                "trial": int(number),
                "values": dict(values),
                "rungs": list(rungs),
                "every": int(e),
            }:
                if rungs and all(type(step) is int for step in rungs):
                    found[number] = Trial(number, values, tuple(rungs), e)
            case {"kind": "rung", "trial": int(number), "rung": int(rung), "step": int(step), "value": value}:
                if number in found and is_number(value):
                    found[number].results[rung] = RungResult(step, float(value))
            case {"kind": "failure", "trial": int(number), "message": str(message)} if number in found:
                found[number].failure = message
            case {"kind": "retry", "trial": int(number)} if number in found:
                found[number].failure = None
    return [found[number] for number in sorted(found)]
