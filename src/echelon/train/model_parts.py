"""Parts of a model by the beginning of their parameters' names: which are trained, and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from echelon.errors import UserError
from echelon.models.lora import add_adapters
from echelon.recipe.trained_parts import (
    Lora,
    adapted_layers,
    belongs_to,
    belongs_to_any,
    find_idle_targets,
)


def require_parts(model: nn.Module, key: str, parts: Iterable[str]) -> None:
    """UserError if the recipe's key names a part that the model does not have."""
    names = [name for name, _ in model.named_parameters()]
    for part in parts:
        if not any(belongs_to(name, part) for name in names):
            known = dict.fromkeys(name.split(".")[0] for name in names)
            raise UserError(f"{key}: the model has no {part!r}; its parts are {', '.join(known)}")


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Have training leave these parts as they are: they get no gradient, so nothing is sent or kept for them."""
    parts = list(parts)
    require_parts(model, "train.freeze", parts)
    for name, parameter in model.named_parameters():
        if belongs_to_any(name, parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("train.freeze: leaves nothing to train")


def adapt(model: nn.Module, lora: Lora) -> None:
    """Have training change only low-rank adapters of the chosen layers, and the parts that are trained in full."""
    require_parts(model, "lora.full", lora.full)
    sizes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for problem in find_idle_targets(sizes, lora):
        raise UserError(f"lora.targets: {problem}")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(belongs_to_any(name, lora.full))
    try:
        add_adapters(model, adapted_layers(sizes, lora), lora.rank, lora.alpha)
    except ValueError as error:
        raise UserError(f"lora.targets: {error}; leave it out") from error


def rate_of(name: str, rates: Mapping[str, float]) -> float:
    """A parameter's learning rate as a multiple of the schedule's."""
    fitting = [part for part in rates if belongs_to(name, part)]
    return rates[max(fitting, key=len)] if fitting else 1.0
