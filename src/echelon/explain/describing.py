"""What a recipe means before anything runs, whatever its task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from echelon.data.batch_plan import AnyPrepared
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
