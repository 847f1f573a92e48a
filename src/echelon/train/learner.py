"""A model with what makes it learn, newly initialised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from echelon.recipe.schema import Recipe
from echelon.tasks.task import Task
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.statistics import SlotStatistics


@dataclass(frozen=True)
class Learner:
    """Weights and gradients in flat buffers, and the optimiser that moves them."""

    model: nn.Module
    statistics: SlotStatistics
    flat: FlatParameters
    optimiser: FlatOptimiser


def build_learner(recipe: Recipe, task: Task, device: torch.device) -> Learner:
    """The recipe's model with the weights that its seed gives."""
    torch.manual_seed(recipe.seed)
    model = task.build_model().to(device)
    statistics = SlotStatistics(model, recipe.train.slots)
    flat = FlatParameters(model, statistics.size)
    statistics.attach(flat)
    return Learner(model, statistics, flat, FlatOptimiser(recipe.optimiser, flat))
