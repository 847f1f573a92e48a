"""Which weights of a run to use: its best, its last, an average, or a given checkpoint's."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from echelon.errors import CheckpointError
from echelon.recipe.loading import load_recipe
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
    return Weights(checkpoint.load_model(), checkpoint.step, checkpoint.folder.name)


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
