"""A model with all that training changes, newly initialised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from echelon.recipe.schema import Recipe
from echelon.tasks.task import Task
from echelon.train.flat import FlatParameters
from echelon.train.model_parts import adapt, freeze, require_parts
from echelon.train.optimiser import FlatOptimiser
from echelon.train.precision import Precision
from echelon.train.statistics import SlotStatistics
from echelon.train.weight_average import WeightAverage


@dataclass(frozen=True)
class ModelState:
    """Weights and gradients in flat buffers, and what updates them."""

    module: nn.Module
    """Its parameters are views of the flat weights."""
    flat: FlatParameters
    statistics: SlotStatistics
    """BatchNorm's running statistics."""
    optimiser: FlatOptimiser
    average: WeightAverage
    precision: Precision


def build_model_state(recipe: Recipe, task: Task, device: torch.device) -> ModelState:
    """The recipe's model with the weights that its seed gives."""
    torch.manual_seed(recipe.seed)
    module = task.build_model().to(device)
    if recipe.lora is not None:
        adapt(module, recipe.lora)
    freeze(module, recipe.train.freeze)
    require_parts(module, "train.layer_rates", recipe.train.layer_rates)
    statistics = SlotStatistics(module, recipe.train.slots)
    flat = FlatParameters(module, recipe.train.slots, statistics.size)
    statistics.attach(flat)
    return ModelState(
        module=module,
        flat=flat,
        statistics=statistics,
        optimiser=FlatOptimiser(recipe.optimiser, flat, recipe.train.layer_rates),
        average=WeightAverage(module, flat, recipe.train.average_decay),
        precision=Precision(recipe.train.precision, device),
    )
