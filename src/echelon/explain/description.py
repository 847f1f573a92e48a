"""What a recipe means before anything runs, whatever its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from echelon.data.batch_plan import AnyPrepared
from echelon.explain.units import show_megabytes
from echelon.recipe.length import length_in_steps
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task


@dataclass(frozen=True)
class Description:
    """What `describe --json` prints of every task; each adds what its recipes have of their own."""

    name: str
    task: str
    parameters: int
    parameters_by_layer: dict[str, int]
    gradient_bytes: int
    checkpoint_bytes: int
    """Of one worker alone."""
    checkpoint_parts: str
    optimiser_bytes: int
    """Of what the optimiser keeps for the weights."""
    shares_optimiser: bool
    """Whether each worker keeps only a part of it."""
    slots: int
    flops_per_step: int
    is_prepared: bool
    """Whether counts come from the prepared data; otherwise from the recipe and assumptions."""
    steps_per_epoch: float | None
    steps: int | None
    """None if that depends on data that are not prepared yet."""
    epochs: float | None
    schedule: str
    learning_rates: dict[int, float]


class DescribeDeclaration(Protocol):
    """What a task says about the meaning of its recipes."""

    def describe(self, recipe: Recipe, prepared: AnyPrepared | None) -> Description: ...

    def format_description(self, description: Description) -> str:
        """For people."""
        ...


def describe_recipe(recipe: Recipe, prepared: AnyPrepared | None) -> Description:
    """What the recipe means; with prepared data, what it means for that data."""
    task: DescribeDeclaration = find_task(recipe.task)
    return task.describe(recipe, prepared)


def format_description(description: Description) -> str:
    """The description as text for people."""
    task: DescribeDeclaration = find_task(description.task)
    return task.format_description(description)


def format_facts(description: Description, about: Sequence[str], step: str, data: str = "") -> str:
    """The facts of every task as text, around those `about` the model and its data; `data` says of what an epoch is."""
    d = description
    steps = f"{d.steps:,} steps" if d.steps is not None else "steps not known before the data is prepared"
    epochs = f", {d.epochs:.3g} epochs{data}" if d.epochs is not None else ""
    lines = [
        f"{d.name}: {d.task}",
        *about,
        f"  parameters       {d.parameters:,}",
        *(f"    {name:<15}{count:>14,}" for name, count in d.parameters_by_layer.items()),
        f"  gradient         {show_megabytes(d.gradient_bytes)} in float32: what each worker exchanges per step",
        f"  checkpoint       about {show_megabytes(d.checkpoint_bytes)}: {d.checkpoint_parts}",
        *(
            [f"  optimiser        {show_megabytes(d.optimiser_bytes)}, shared out over the workers"]
            if d.shares_optimiser
            else []
        ),
        f"  step             {step}",
        f"  FLOPs a step     {d.flops_per_step:.3g}",
        f"  length           {steps}{epochs}",
        f"  learning rate    {d.schedule}",
        *(f"    step {step:<10,}{rate:.3e}" for step, rate in d.learning_rates.items()),
    ]
    return "\n".join(lines)


def steps_of(recipe: Recipe, per_epoch: float | None) -> int | None:
    """None if the recipe counts epochs and the data is not prepared."""
    if recipe.train.steps is None and per_epoch is None:
        return None
    return length_in_steps(recipe.train, per_epoch or 0.0)


def some_rates(recipe: Recipe, steps: int | None) -> dict[int, float]:
    """A few steps' learning rates, if the number of steps is known."""
    if steps is None:
        return {}
    rate = rate_by_step(recipe, steps)
    warm_up = getattr(recipe.schedule, "warmup_steps", 0)
    chosen = {1, warm_up, steps // 4, steps // 2, 3 * steps // 4, steps}
    return {step: rate(step) for step in sorted(chosen) if 1 <= step <= steps}
