"""What a checkpoint is made of, from the recipe alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echelon.recipe.schema import Recipe
from echelon.shapes.factors import gains_by_factors

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class CheckpointPart:
    """Float32 numbers of one kind."""

    name: str
    numbers: float
    scope: Literal["run", "several", "each"] = "run"
    """Stored once, once if there are several workers, or once for each of several workers."""

    def bytes(self, workers: int) -> float:
        """In a run of `workers` workers."""
        times = {"run": 1, "several": int(workers > 1), "each": workers if workers > 1 else 0}[self.scope]
        return FLOAT32_BYTES * self.numbers * times


def checkpoint_parts(
    recipe: Recipe, parameters: int, matrices: Sequence[tuple[int, int]]
) -> tuple[CheckpointPart, ...]:
    """Every part with a size; `matrices` are those that a low-rank exchange may factor."""
    parts = [CheckpointPart("weights", parameters)]
    if recipe.train.average_decay is not None:
        parts = [
            CheckpointPart("the average of the weights", parameters),
            CheckpointPart("the weights that train", parameters),
        ]
    kept, name, settings = numbers_per_parameter(recipe) - 1, recipe.train.exchange, recipe.exchange
    state = ("nothing of the optimiser", "momentum", "Adam's two averages")[kept]
    if name == "local":
        parts.append(
            CheckpointPart(f"{state} of {settings.replicas} replicas", settings.replicas * kept * parameters)
        )
        parts.append(CheckpointPart("the outer step's velocity", parameters))
    else:
        parts.append(CheckpointPart(state, kept * parameters))
    if name == "low_rank" or (name == "compressed" and settings.wire == "int8"):
        parts.append(CheckpointPart("what workers still owe each other", parameters, "each"))
    if name == "low_rank":
        columns = sum(m for n, m in matrices if gains_by_factors(n, m, settings.rank))
        parts.append(CheckpointPart("low-rank factors", settings.rank * columns, "several"))
    return tuple(parts)


def numbers_per_parameter(recipe: Recipe) -> int:
    """The weight itself and what the optimiser keeps for it."""
    optimiser = recipe.optimiser
    if optimiser.kind == "sgd":
        return 2 if optimiser.momentum else 1
    return 3


def optimiser_bytes(recipe: Recipe, parameters: int) -> int:
    """Of what the optimiser keeps for so many parameters."""
    return FLOAT32_BYTES * (numbers_per_parameter(recipe) - 1) * parameters


def format_parts(parts: Sequence[CheckpointPart]) -> str:
    """What is always there, and what more workers add."""
    always = ", ".join(part.name for part in parts if part.bytes(1))
    each = [part for part in parts if part.scope == "each"]
    more = ", ".join(f"{part.bytes(2) / 2 / 1e6:,.1f} MB ({part.name})" for part in each)
    return f"{always}; each of several workers adds {more}" if more else always
