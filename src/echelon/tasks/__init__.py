"""The worker half of tasks: each joins data, model, loss and metric behind one interface."""

from __future__ import annotations

from typing import Protocol

import torch

from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task
from echelon.runfolder import RunFolder
from echelon.tasks.task import Task


class TaskBuilder(Protocol):
    """What a task's declaration gives to workers."""

    def build_task(self, recipe: Recipe, run: RunFolder, device: torch.device) -> Task: ...


def build_task(recipe: Recipe, run: RunFolder, device: torch.device) -> Task:
    """The recipe's task, on the data that was prepared for the run."""
    task: TaskBuilder = find_task(recipe.task)
    return task.build_task(recipe, run, device)
