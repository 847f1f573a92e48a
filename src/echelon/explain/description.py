"""What a recipe means before anything runs, whatever its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from echelon.data.batch_plan import AnyPrepared
from echelon.recipe.length import length_in_steps
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task

if TYPE_CHECKING:
    from dataclasses import Field


class AnyDescription(Protocol):
    """What `describe --json` prints: a dataclass, each task's own."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def task(self) -> str: ...

    @property
    def parameters(self) -> int: ...

    @property
    def gradient_bytes(self) -> int: ...

    @property
    def flops_per_step(self) -> int: ...

    @property
    def checkpoint_bytes(self) -> int:
        """Of one worker alone."""
        ...

    @property
    def steps(self) -> int | None:
        """None if that depends on data that are not prepared yet."""
        ...


class DescribeDeclaration(Protocol):
    """What a task says about the meaning of its recipes."""

    def describe(self, recipe: Recipe, prepared: AnyPrepared | None) -> AnyDescription: ...

    def format_description(self, description: AnyDescription) -> str:
        """For people."""
        ...


def describe_recipe(recipe: Recipe, prepared: AnyPrepared | None) -> AnyDescription:
    """What the recipe means; with prepared data, what it means for that data."""
    task: DescribeDeclaration = find_task(recipe.task)
    return task.describe(recipe, prepared)


def format_description(description: AnyDescription) -> str:
    """The description as text for people."""
    task: DescribeDeclaration = find_task(description.task)
    return task.format_description(description)


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
