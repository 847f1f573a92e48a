"""`evaluate`: what a trained run is good for. Imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echelon.comm.group import Group
from echelon.errors import UserError
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from echelon.tasks import build_task
from echelon.tasks.task import Split
from echelon.train.evaluate import save_scores, score_split, score_summary
from echelon.train.precision import Precision
from echelon.train.weights import choose_weights, load_weights
from echelon.train.worker import choose_device

_SETTABLE = ("evaluate.", "train.precision=")


def evaluate(
    run: RunFolder, *, checkpoint: str | None, split: Split, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """Score one checkpoint on a split; keeps scores and outputs in the run folder; the keys of `evaluate --json`."""
    for override in overrides:
        if not override.startswith(_SETTABLE):
            raise UserError(
                f"--set {override}: a run is scored on its own data, as its own model; only keys of evaluate and "
                "train.precision can be set"
            )
    recipe, device = load_recipe(run.require().recipe, overrides), choose_device()
    task = build_task(recipe, run, device)
    model = task.build_model().to(device)
    weights = choose_weights(run, checkpoint or recipe.evaluate.final)
    load_weights(model, weights)
    precision = Precision(recipe.train.precision, device)
    scores = score_split(task, model, Group(0, 1), split, precision, final=True)
    summary = score_summary(scores, weights, split)
    save_scores(run, scores, summary)
    return {**summary, **scores.details, "outputs": str(run.outputs_file(split))}
