"""The tasks: each joins data, model, loss and metric behind one interface."""

from __future__ import annotations

import torch

from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.task import Task


def build_task(recipe: Recipe, run: RunFolder, device: torch.device) -> Task:
    """The recipe's task, on the data that was prepared for the run."""
    from echelon.tasks.classification import ClassificationTask
    from echelon.tasks.translation import TranslationTask

    match recipe:
        case TranslationRecipe():
            return TranslationTask.of_run(recipe, run, device)
        case ClassificationRecipe():
            return ClassificationTask.of_run(recipe, run, device)
