"""How much of a model is trained: with frozen parts or adapters (LoRA), less than all of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.recipe.schema import Recipe
from echelon.recipe.trained_parts import ParameterSizes, owner_of, trained_sizes


@dataclass(frozen=True)
class TrainedParameters:
    """What the optimiser updates, and what it leaves."""

    sizes: ParameterSizes
    """Of everything that is trained, by name."""
    frozen: int
    """Numbers of the model's own that are not trained."""
    adapted: int = 0
    """Those of them that adapters change: a worker keeps the changed ones, too, for backward."""

    @property
    def count(self) -> int:
        return sum(math.prod(size) for size in self.sizes.values())

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of all that are matrices; convolutions are, of output channels by all else."""
        return matrices_among(self.sizes)

    def count_by_owner(self) -> dict[str, int]:
        """Numbers that are trained for each of the model's own parameters."""
        counts: dict[str, int] = {}
        for name, size in self.sizes.items():
            counts[owner_of(name)] = counts.get(owner_of(name), 0) + math.prod(size)
        return counts


def find_trained(recipe: Recipe, sizes: ParameterSizes) -> TrainedParameters:
    """What the recipe trains of a model with parameters of these sizes."""
    trained = trained_sizes(sizes, recipe.lora, recipe.train.freeze)
    left = {name: math.prod(size) for name, size in sizes.items() if name not in trained}
    owners = {owner_of(name) for name in trained}
    adapted = sum(count for name, count in left.items() if name in owners)
    return TrainedParameters(trained, sum(left.values()), adapted)


def matrices_among(sizes: ParameterSizes) -> tuple[tuple[int, int], ...]:
    return tuple((size[0], math.prod(size[1:])) for size in sizes.values() if math.prod(size[1:]) > 1)
