"""What a recipe means and costs, from the sizes of its parameters alone: for tasks that say nothing more."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from echelon.explain.checkpoints import checkpoint_parts, format_parts, numbers_per_parameter, optimiser_bytes
from echelon.explain.description import Description, format_facts, some_rates, steps_of
from echelon.explain.workload import FLOAT32_BYTES, Layer, Workload
from echelon.recipe.schedule import formula
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import StepSize, model_width


class SizesDeclaration(Protocol):
    """What a task says about the sizes of its model and of its steps."""

    @property
    def targets(self) -> str: ...

    def batch(self, recipe: Any) -> StepSize: ...

    def parameter_sizes(self, recipe: Any, prepared: Any) -> Mapping[str, tuple[int, ...]]: ...

    def step_flops(self, recipe: Any, prepared: Any) -> int: ...

    def steps_per_epoch(self, recipe: Any, prepared: Any) -> float: ...


@dataclass(frozen=True)
class PlainDescription(Description):
    """Everything `describe --json` prints."""

    batch: str


def describe_plainly(task: SizesDeclaration, recipe: Recipe, prepared: Any) -> PlainDescription:
    """What the recipe means; with prepared data, what it means for that data."""
    sizes = task.parameter_sizes(recipe, prepared)
    counts = {name: math.prod(size) for name, size in sizes.items()}
    per_epoch = task.steps_per_epoch(recipe, prepared) if prepared else None
    steps = steps_of(recipe, per_epoch)
    parts = checkpoint_parts(recipe, sum(counts.values()), _matrices(sizes))
    return PlainDescription(
        name=recipe.name,
        task=recipe.task,
        parameters=sum(counts.values()),
        parameters_by_layer=counts,
        gradient_bytes=FLOAT32_BYTES * sum(counts.values()),
        checkpoint_bytes=round(sum(part.bytes(1) for part in parts)),
        checkpoint_parts=format_parts(parts),
        optimiser_bytes=optimiser_bytes(recipe, sum(counts.values())),
        shares_optimiser=recipe.train.shard == "optimiser",
        batch=str(task.batch(recipe)),
        slots=recipe.train.slots,
        flops_per_step=task.step_flops(recipe, prepared),
        is_prepared=prepared is not None,
        steps_per_epoch=per_epoch,
        steps=steps,
        epochs=recipe.train.epochs or (steps / per_epoch if steps and per_epoch else None),
        schedule=formula(recipe.schedule, model_width(recipe)),
        learning_rates=some_rates(recipe, steps),
    )


def format_plainly(description: PlainDescription) -> str:
    """The description as text for people."""
    return format_facts(description, [], f"{description.batch} in {description.slots} slots")


def plain_workload(task: SizesDeclaration, recipe: Recipe, prepared: Any, steps: int | None) -> Workload:
    """The work of a step, shared out over the parameters by their size; memory for activations is not counted."""
    sizes = task.parameter_sizes(recipe, prepared)
    counts = {name: math.prod(size) for name, size in sizes.items()}
    forward_flops = task.step_flops(recipe, prepared) / 3
    layers = [
        Layer(name, forward_flops * count / sum(counts.values()), FLOAT32_BYTES * count)
        for name, count in counts.items()
    ]
    return Workload(
        name=recipe.name,
        layers=tuple(reversed(layers)),
        matrices=_matrices(sizes),
        tables=0,
        slots=recipe.train.slots,
        objects=task.batch(recipe).size,
        unit=task.targets,
        number_format="float32" if recipe.train.precision == "float32" else "half",
        optimiser_numbers=numbers_per_parameter(recipe),
        shares_optimiser=recipe.train.shard == "optimiser",
        activation_bytes=0.0,
        steps=steps,
        checkpoint_every=recipe.checkpoint.fixed_interval,
        settings=recipe.exchange,
        exchange=recipe.train.exchange,
        allowed=tuple(recipe.train.exchange_may),
        checkpoint=checkpoint_parts(recipe, sum(counts.values()), _matrices(sizes)),
    )


def _matrices(sizes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, int], ...]:
    """Rows and columns of those parameters that are matrices."""
    return tuple((size[0], math.prod(size[1:])) for size in sizes.values() if math.prod(size[1:]) > 1)
