"""Values of "auto" that a run, or its mirror, has found before."""

from __future__ import annotations

import tempfile
from pathlib import Path

from echelon.recipe.compatibility import found_in, require_same_learning, with_found
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder
from echelon.store import get_file, has_file


def with_earlier(recipe: Recipe, run: RunFolder, workers: WorkerRange | None) -> Recipe:
    """The recipe with what the run has found for "auto", and with the `workers` of the command line, which are kept
    with the run, so that it is resumed with as many."""
    before = load_recipe(run.recipe) if run.recipe.exists() else None
    resolved = _with_found(recipe, before) if before else recipe
    if workers is None:
        return resolved
    if not workers.is_auto:
        return with_workers(resolved, workers.most if workers.is_fixed else str(workers))
    # The number that the run was begun with, if it is not the recipe's: what "auto" was found to be, or --workers.
    is_found = before is not None and before.train.workers != recipe.train.workers
    return with_workers(resolved, before.train.workers if before and is_found else "auto")


def with_mirrored(recipe: Recipe) -> Recipe:
    """The recipe with what was found for "auto" where the run began, if its checkpoints are at an address; the number
    of workers is this machine's own."""
    if recipe.checkpoint.mirror is None:
        return recipe
    with tempfile.TemporaryDirectory() as folder:
        copy = RunFolder(Path(folder)).recipe
        address = f"{recipe.checkpoint.mirror.rstrip('/')}/{copy.name}"
        if not has_file(address):
            return recipe
        get_file(address, copy)
        theirs = load_recipe(copy)
    found = with_workers(_with_found(recipe, theirs), recipe.train.workers)
    require_same_learning(recipe.checkpoint.mirror, theirs, found)
    return found


def with_workers(recipe: Recipe, workers: int | str) -> Recipe:
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"workers": workers})})


def _with_found(recipe: Recipe, before: Recipe) -> Recipe:
    checkpoint, train, old = recipe.checkpoint, recipe.train, before.train
    if checkpoint.every == "auto":
        checkpoint = checkpoint.model_copy(update={"every": before.checkpoint.every})
    if train.workers == "auto":
        train = train.model_copy(update={"workers": old.workers})
    if train.is_batch_auto:
        train = train.with_batch_of(old)
    recipe = recipe.model_copy(update={"checkpoint": checkpoint, "train": train})
    exchange = found_in(before)
    return with_found(recipe, exchange) if train.exchange == "auto" and exchange else recipe
