"""Computes slots of a task of one's own in a given order and prints their results: run by `doctor --task`."""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from echelon.recipe.loading import check_recipe
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder, to_json
from echelon.tasks import build_task
from echelon.tasks.task import Task
from echelon.train.model_state import ModelState, build_model_state
from echelon.train.slots import slot_seed

_STEP = 1


def try_slots(recipe: Recipe, order: Sequence[int]) -> dict[str, Any]:
    """Digests of the new model and of every slot's loss and gradient, in order; the scores of the validation set, which
    is shared by two if the order goes backwards; and what a slot changes that it must not."""
    device = torch.device("cpu")
    task = build_task(recipe, RunFolder(Path()), device)
    state = build_model_state(recipe, task, device)
    initial, buffers = _digest(state.flat.weights), _other_buffers(state)
    slots = [_try_slot(recipe, task, state, number % recipe.train.slots) for number in order]
    changed = [name for name, digest in _other_buffers(state).items() if digest != buffers[name]]
    told = [
        f"the buffer {name} of the model changes while it trains, on each worker differently"
        for name in changed
    ]
    is_shared = order[0] > order[-1]
    return {
        "initial": initial,
        "slots": slots,
        "changed": told,
        "scores": _score(task, state, 2 if is_shared else 1),
    }


def _try_slot(recipe: Recipe, task: Task, state: ModelState, number: int) -> list[Any]:
    slot = task.slots(_STEP)[number]
    state.flat.zero()
    state.module.train()
    batch = task.load(slot)
    torch.manual_seed(slot_seed(recipe.seed, _STEP, number))
    loss = task.loss(state.module, batch)
    loss.smoothed.backward()  # type: ignore[no-untyped-call]
    return [number, slot.targets, float(loss.nll.item()).hex(), _digest(state.flat.gradients)]


def _other_buffers(state: ModelState) -> dict[str, str]:
    """Digests of the buffers that no exchange looks after: BatchNorm's are looked after."""
    looked_after = {"running_mean", "running_var", "measured_2C"}
    named = state.module.named_buffers()
    return {name: _digest(each) for name, each in named if name.rpartition(".")[2] not in looked_after}


def _score(task: Task, state: ModelState, workers: int) -> dict[str, str]:
    if not task.has_split("valid"):
        return {}
    scoring = task.scoring("valid", final=False)
    state.module.eval()
    with torch.inference_mode():
        shares = [
            scoring.share(state.module, rank=rank, size=workers, on_batch=lambda _: None)
            for rank in range(workers)
        ]
    return {name: float(value).hex() for name, value in scoring.combine(shares).metrics.items()}


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    recipe = check_recipe(tomllib.loads(sys.stdin.read()), where="the recipe")
    sys.stdout.write(to_json(try_slots(recipe, [int(word) for word in sys.argv[1:]])) + "\n")
