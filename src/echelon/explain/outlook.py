"""What longer training would bring to the loss and the validation score: twice as long, or to the planned end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from echelon.explain.curves import FEWEST_POINTS, FEWEST_SCORINGS, forecast
from echelon.explain.history import History
from echelon.explain.uncertainty import Estimate
from echelon.monitor.records import is_number
from echelon.recipe.tasks import less_is_better

_BEGUN = 10.0
"""Points out of 100 from which a score's curve says something: before, it has only begun to rise."""


@dataclass(frozen=True)
class Outlook:
    """A value now, and at a later step."""

    now: float
    later: Estimate
    step: int
    is_loss: bool = False
    """Whether less is better."""

    @property
    def gain(self) -> Estimate:
        """The predicted improvement, in its own unit; never negative, because training can be stopped."""
        sign = -1.0 if self.is_loss else 1.0
        ends = sorted(max(0.0, sign * (value - self.now)) for value in (self.later.low, self.later.high))
        return Estimate(max(0.0, sign * (self.later.expected - self.now)), *ends)

    def to_json(self) -> dict[str, Any]:
        later = self.later
        return {"now": self.now, "expected": later.expected, "low": later.low, "high": later.high}


def loss_outlook(history: History) -> Outlook | None:
    """Of the smoothed training loss; None if there are too few steps to tell."""
    found = forecast(*history.losses())
    if found is None:
        return None
    return Outlook(found.last, found.at(_later_step(history)), _later_step(history), is_loss=True)


def _later_step(history: History) -> int:
    return round(history.ahead * history.last_step)


def score_outlook(history: History) -> Outlook | str:
    """Of the validation score, between its present value and 100; or why it cannot be predicted."""
    name, key = history.metric
    if less_is_better(key):
        return f"less {name} is better, and only scores that rise towards 100 are predicted"
    scored = [
        record for record in history.valid if is_number(record.get(key)) and is_number(record.get("step"))
    ]
    if len(scored) < FEWEST_SCORINGS:
        times = "once" if len(scored) == 1 else f"{len(scored)} times"
        return (
            f"the validation set was scored {times}, too seldom to tell how {name} would change; "
            f"{FEWEST_SCORINGS} scorings are needed (evaluate.every)"
        )
    now = min(100.0, float(scored[-1][key]))
    if now < _BEGUN:
        return f"the validation {name} of {now:.2f} has only begun to rise: it is too early to tell how far it will"
    missing = [max(0.0, 100.0 - float(record[key])) for record in scored]
    found = forecast([float(record["step"]) for record in scored], missing, width=1)
    if found is None or now == 100.0:
        return Outlook(now, Estimate(now, now, now), _later_step(history))
    missing_later = found.at(_later_step(history))
    low, high = max(0.0, 100.0 - missing_later.high), 100.0 - missing_later.low
    return Outlook(now, Estimate(100.0 - missing_later.expected, low, high), _later_step(history))


def last_score(history: History) -> float | None:
    """The last one on the validation set."""
    key = history.metric[1]
    return next(
        (float(record[key]) for record in reversed(history.valid) if is_number(record.get(key))), None
    )


def show_scorings(count: int) -> str:
    """Their number, as text."""
    return "1 scoring" if count == 1 else f"{count:,} scorings"


def too_few_steps(history: History) -> str:
    """Why there is no outlook on the loss."""
    count = len(history.losses()[0])
    return f"There is too little data to tell: {count} steps have a loss, and at least {FEWEST_POINTS} are needed."
