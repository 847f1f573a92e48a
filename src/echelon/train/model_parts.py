"""Parts of a model by the beginning of their parameters' names: which are frozen, and how fast others learn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn

from echelon.errors import UserError


def belongs_to(name: str, part: str) -> bool:
    """Whether a parameter is of a part: `layer1` has `layer1.0.conv1.weight`, and not `layer10.weight`."""
    return name == part or name.startswith(f"{part.removesuffix('.')}.")


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
        if any(belongs_to(name, part) for part in parts):
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("train.freeze: leaves nothing to train")


def rate_of(name: str, rates: Mapping[str, float]) -> float:
    """A parameter's learning rate as a multiple of the schedule's."""
    fitting = [part for part in rates if belongs_to(name, part)]
    return rates[max(fitting, key=len)] if fitting else 1.0
