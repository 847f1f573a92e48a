"""How many steps a recipe means."""

from __future__ import annotations

import math

from echelon.recipe.schema import Train


def length_in_steps(train: Train, steps_per_epoch: float) -> int:
    """The recipe's length in steps; an epoch that ends inside a step ends with it."""
    if train.steps is not None:
        return train.steps
    assert train.epochs is not None, "checked with the recipe"
    return max(1, math.ceil(train.epochs * steps_per_epoch))
