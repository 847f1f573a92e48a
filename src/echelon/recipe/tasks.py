"""The tasks by name, and what the declaration of each says about its recipes.

Nothing else asks which task a recipe is for. Who needs to know something that differs between tasks asks the
declaration: `find_task(recipe.task)`. A declaration names everything a task brings, from its recipe to the verb that
uses its models, and imports it only when it is asked; so this table may stand below all of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, get_args

from echelon.errors import Problem
from echelon.recipe.own_code import is_import_path
from echelon.recipe.schema import LOWER_IS_BETTER, Recipe

TASKS = {
    "translation": "echelon.declarations.translation",
    "classification": "echelon.declarations.classification",
}
"""The module of each task; its `TASK` is the declaration, an `echelon.declarations.declaration.TaskDeclaration`."""
OWN_TASK = "echelon.declarations.own"
"""Declares the tasks of users, which recipes name by import paths; it imports these only if that is allowed."""
DEFAULT_TASK = "translation"
"""The task of a recipe that names none."""


@dataclass(frozen=True)
class Score:
    """What a model is scored by, beside its loss."""

    key: str
    """In records and in --json."""
    name: str
    """For people."""
    unit: str = ""

    def format(self, value: float) -> str:
        """`BLEU 27.31`, `top-1 93.20%`."""
        return f"{self.name} {value:.2f}{self.unit}"


@dataclass(frozen=True)
class StepSize:
    """The size of a step, as a recipe gives it."""

    key: str
    """Its key in the recipe: `train.batch_tokens`."""
    size: int
    unit: str
    """What is counted, in the plural: tokens, images."""
    is_limit: bool = False
    """Whether a step has at most that many, instead of exactly that many."""

    def __str__(self) -> str:
        return f"{'at most ' if self.is_limit else ''}{self.size:,} {self.unit}"


@dataclass(frozen=True)
class Use:
    """What a task's models are for, in the words of messages."""

    verb: str
    """A verb of the command line: `echelon translate`."""
    does: str
    """`translates`"""
    do: str
    """`translate`"""


class RecipeDeclaration(Protocol):
    """What a task says about its recipes."""

    @property
    def recipe(self) -> type[Recipe]: ...

    @property
    def scores(self) -> tuple[Score, ...]:
        """The one that people ask for first, and others."""
        ...

    @property
    def unit(self) -> str:
        """What steps are counted in, for names of measurements: tokens, images."""
        ...

    @property
    def targets(self) -> str:
        """The unit as it is shown: target tokens, images."""
        ...

    @property
    def score_title(self) -> str:
        """The title of the chart of validation scores."""
        ...

    def batch(self, recipe: Recipe) -> StepSize:
        """The size of a step."""
        ...

    def find_problems(self, recipe: Recipe) -> Iterable[Problem]:
        """What is wrong between keys of the task's own tables."""
        ...

    def refuse_idle(self, recipe: Recipe, overrides: Sequence[str]) -> None:
        """UserError if an override changes nothing."""
        ...

    def width(self, recipe: Recipe) -> int | None:
        """The width that the schedule "transformer" scales by; None for models without one."""
        ...


_own_scores: dict[str, tuple[Score, ...]] = {}
"""The scores of users' tasks whose recipes this process has read."""
_own_downwards: set[str] = set()
"""Those that improve downwards, according to any of these recipes."""


def note_own_scores(path: str, keys: Sequence[str], downwards: Sequence[str] = ()) -> None:
    """Remember what a recipe says that the models of a user's task are scored by, and what improves downwards."""
    _own_downwards.update(downwards)
    others = [score for score in own_scores(path) if score.key not in keys]
    _own_scores[path] = (*(Score(key, key.replace("_", " ")) for key in keys), *others)


def own_scores(path: str) -> tuple[Score, ...]:
    """What models of a user's task are scored by, according to the recipes that were read."""
    return _own_scores.get(path, ())


def less_is_better(metric: str) -> bool:
    """Whether a metric improves downwards."""
    return metric in LOWER_IS_BETTER or metric in _own_downwards


def find_task(name: str) -> Any:
    """The declaration of a task.

    Callers annotate what they assign it to: with `RecipeDeclaration`, or with the protocol that their own layer has for
    what it asks of a task.
    """
    if is_import_path(name):
        return import_module(OWN_TASK).OwnDeclaration(name)
    return import_module(TASKS[name]).TASK


def all_tasks() -> Iterator[RecipeDeclaration]:
    """The declarations of all tasks, and of those of users that this process has read recipes of."""
    return (find_task(name) for name in (*TASKS, *_own_scores))


def all_scores() -> Iterator[Score]:
    """The scores of all tasks; their losses are not among them."""
    found = {score.key: score for task in all_tasks() for score in task.scores}
    return (score for score in found.values() if score.key not in LOWER_IS_BETTER)


def main_scores() -> list[Score]:
    """The scores that people ask for first, of all tasks."""
    return list({task.scores[0].key: task.scores[0] for task in all_tasks()}.values())


def target_names() -> dict[str, str]:
    """What steps of all tasks are counted in, as in names of measurements and for people."""
    return {task.unit: task.targets for task in all_tasks()}


def task_name(kind: type[Recipe]) -> str:
    """The task that a type of recipes is for."""
    return str(get_args(kind.model_fields["task"].annotation)[0])


def recipe_type(name: str) -> type[Recipe]:
    """The recipes of a task."""
    task: RecipeDeclaration = find_task(name)
    return task.recipe


def model_width(recipe: Recipe) -> int:
    """The width that the schedule "transformer" scales by; 1 for models without one."""
    task: RecipeDeclaration = find_task(recipe.task)
    return task.width(recipe) or 1
