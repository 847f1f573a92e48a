"""How often to save: `checkpoint.every = "auto"`."""

from __future__ import annotations

import math


def young_daly_seconds(cost_s: float, failure_s: float) -> float:
    """The time between saves that loses least: the square root of 2 x cost of a save x time between failures.

    Saving more often costs more time in saves, saving less often more time in work done again after a failure
    (Young 1974, Daly 2006).
    """
    return math.sqrt(2 * cost_s * failure_s)


def steps_between_saves(cost_s: float, step_s: float, failure_s: float) -> int:
    """That interval in steps, at least one; a save that costs nothing measurable counts as a millisecond."""
    return max(1, round(young_daly_seconds(max(cost_s, 1e-3), failure_s) / step_s))
