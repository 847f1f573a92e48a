"""Which weights of a run to use: its best, its last, an average, or a given checkpoint's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor, nn

from echelon.errors import CheckpointError, UserError
from echelon.models.lora import with_idle_adapters
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import average_weights, choose_checkpoint, list_checkpoints, scheduled


@dataclass(frozen=True)
class Weights:
    """A model's tensors by name, and where they come from."""

    tensors: dict[str, Tensor]
    step: int
    label: str
    num_averaged: int = 1


def choose_weights(run: RunFolder, which: str) -> Weights:
    """The weights that `which` names: best, last, average, or a checkpoint folder, by name or by path."""
    if which == "average":
        recipe = load_recipe(run.recipe).checkpoint
        newest = scheduled(list_checkpoints(run.checkpoints), recipe.fixed_interval)[-recipe.average :]
        if not newest:
            raise CheckpointError(f"{run.checkpoints}: there is no complete checkpoint yet")
        return Weights(
            average_weights(newest), newest[-1].step, f"average of {len(newest)} checkpoints", len(newest)
        )
    by_name = run.checkpoints / which
    checkpoint = choose_checkpoint(run.checkpoints, by_name if by_name.is_dir() else which)
    return Weights(checkpoint.load_merged(), checkpoint.step, checkpoint.folder.name)


class SizedTask(Protocol):
    """What a task says about the size of its models."""

    def is_larger_than(self, recipe: Recipe, num_tensors: int, num_numbers: int) -> bool:
        """Whether the recipe's model has more tensors or more numbers than these."""
        ...


def require_size(recipe: Recipe, weights: Weights) -> None:
    """CheckpointError if the recipe's model is larger than the weights. Asked before the model is built, which would
    take the memory that a run folder from somebody else asks for."""
    task: SizedTask = find_task(recipe.task)
    num_numbers = sum(tensor.numel() for tensor in weights.tensors.values())
    if task.is_larger_than(recipe, len(weights.tensors), num_numbers):
        raise CheckpointError(
            f"{weights.label} does not fit this recipe's model, which is larger than its {num_numbers:,} numbers in "
            f"{len(weights.tensors):,} tensors"
        )


def without_other_head(model: nn.Module, weights: Weights) -> tuple[Weights, bool]:
    """The weights with the model's own last layer if theirs is for another number of classes, and whether it was
    theirs. Such a layer is called `fc` or `output`."""
    own = model.state_dict()
    head = [name for name in own if _is_of_head(name) and ".lora." not in name]
    if all(
        name in weights.tensors and own[name].shape[1:] == weights.tensors[name].shape[1:] for name in head
    ):
        other = {name: own[name].clone() for name in head if own[name].shape != weights.tensors[name].shape}
        return replace(weights, tensors={**weights.tensors, **other}), not other
    return weights, True


def require_trained_head(model: nn.Module) -> None:
    """UserError if the last layer, which begins anew, would stay as it begins."""
    for name, parameter in model.named_parameters():
        if _is_of_head(name) and not parameter.requires_grad:
            part = name.split(".")[0]
            raise UserError(
                f"the last layer is new, for other classes, and would not be trained; put {part!r} into lora.full, or "
                "take it out of train.freeze"
            )


def _is_of_head(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in ("fc", "output")


def onto_adapters(model: nn.Module, weights: Weights) -> Weights:
    """A plain model's weights for one that may have adapters (LoRA), which then add nothing."""
    return replace(weights, tensors=with_idle_adapters(model, weights.tensors))


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy the tensors into the model; names and shapes must fit."""
    own = model.state_dict()
    missing, unknown = (
        sorted(own.keys() - weights.tensors.keys()),
        sorted(weights.tensors.keys() - own.keys()),
    )
    shapes = [
        name for name in own.keys() & weights.tensors.keys() if own[name].shape != weights.tensors[name].shape
    ]
    if missing or unknown or shapes:
        raise CheckpointError(
            f"{weights.label} does not fit this recipe's model: "
            f"missing {missing[:3]}, unknown {unknown[:3]}, other shape {sorted(shapes)[:3]}"
        )
    model.load_state_dict(weights.tensors)
