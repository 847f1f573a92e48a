"""How often to save: `checkpoint.every = "auto"`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.recipe.schema import Recipe
from echelon.resolve.run_recipe import write_recipe
from echelon.runfolder import RunFolder


@dataclass(frozen=True)
class SavingCost:
    """What the interval follows from, as seen in the first steps."""

    save_s: float
    """How long training stands still for a save."""
    step_s: float
    failure_s: float
    """Mean time between failures of any host."""
    period: int
    """The interval must be a multiple of these steps."""

    def choose_interval(self) -> int:
        """Steps between two saves."""
        return (
            math.ceil(steps_between_saves(self.save_s, self.step_s, self.failure_s) / self.period)
            * self.period
        )

    def explain(self, every: int) -> str:
        """One sentence for the run's records."""
        return (
            f'checkpoint.every = "auto" is {every} steps ({every * self.step_s:.0f} s) here: a save costs '
            f"{self.save_s:.3f} s, and a failure is expected every {self.failure_s / 3600:g} hours"
        )


def write_interval(run: RunFolder, recipe: Recipe, every: int) -> None:
    """Keep the interval in the run's recipe."""
    checkpoint = recipe.checkpoint.model_copy(update={"every": every})
    write_recipe(run, recipe.model_copy(update={"checkpoint": checkpoint}))


def young_daly_seconds(cost_s: float, failure_s: float) -> float:
    """The time between saves that loses least: the square root of 2 x cost of a save x time between failures.

    Saving more often costs more time in saves, saving less often more time in work done again after a failure
    (Young 1974, Daly 2006).
    """
    return math.sqrt(2 * cost_s * failure_s)


def steps_between_saves(cost_s: float, step_s: float, failure_s: float) -> int:
    """That interval in steps, at least one; a save that costs nothing measurable counts as a millisecond."""
    return max(1, round(young_daly_seconds(max(cost_s, 1e-3), failure_s) / step_s))
