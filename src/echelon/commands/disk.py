"""Whether a run's disk has room for its checkpoints, before the first step."""

from __future__ import annotations

import shutil

from echelon.data.batch_plan import AnyPrepared
from echelon.errors import RunError
from echelon.explain.description import describe_recipe
from echelon.explain.units import show_megabytes
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder


def require_room(run: RunFolder, recipe: Recipe, prepared: AnyPrepared) -> str | None:
    """A note if the checkpoints that will be kept do not all fit; RunError if not even the next one does."""
    one = describe_recipe(recipe, prepared).checkpoint_bytes
    there = sum(1 for folder in run.checkpoints.glob("step-*") if folder.is_dir())
    return judge_room(shutil.disk_usage(run.path).free, one, recipe.checkpoint.keep, there, run)


def judge_room(free: int, one: int, keep: int, there: int, run: RunFolder) -> str | None:
    """Like `require_room`, given the free bytes and the bytes of one checkpoint."""
    if free < one:
        raise RunError(
            f"{run.path}: a checkpoint of this model needs {show_megabytes(one)}, and the disk has "
            f"{show_megabytes(free)} free; make room (`echelon runs --prune` deletes old checkpoints), or put the run "
            "on another disk with --run"
        )
    # The best one beside the newest, and the one that is being written before an old one goes.
    at_most = keep + 2
    more = max(0, at_most - there) * one
    if free >= more:
        return None
    return (
        f"note: the run keeps up to {at_most} checkpoints of {show_megabytes(one)}, which takes "
        f"{show_megabytes(more)} more; the disk has {show_megabytes(free)} free; lower checkpoint.keep, or make room"
    )
