"""`runs`: which runs there are, how far they are, how good they are; and making room."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echelon.monitor.records import read_records, training_records
from echelon.monitor.run_state import read_state
from echelon.monitor.scores import FinalScore, final_score, read_all_scores
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder, list_runs


@dataclass(frozen=True)
class RunSummary:
    """A run in one line."""

    name: str
    path: str
    state: str
    """As `RunState.name`; of a run whose hosts were asked also "waiting for hosts"."""
    step: int
    steps: int | None
    bleu: float | None
    """Test BLEU if the run was scored on its test set, otherwise the best validation BLEU."""
    bleu_of: str | None
    """"test" or "validation"."""
    bytes: int
    last_change: float
    """Seconds since the epoch."""
    top1: float | None = None
    """Of image classification, in percent: test or best validation top-1."""
    top1_of: str | None = None
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """What `evaluate` has found on each set, by its name."""
    test: dict[str, Any] | None = None
    """The score on the test set at the end of training, with checkpoint, step and signature."""


def summarise_runs(folder: Path) -> list[RunSummary]:
    """Every run below `folder`."""
    return [summarise(run) for run in list_runs(folder)]


def summarise(run: RunFolder) -> RunSummary:
    """How a run stands, from its records."""
    records = training_records(read_records(run.worker_records(0)))
    state, test = read_state(run, records), final_score(run, records)
    bleu, bleu_of = _score(test, records, "bleu")
    top1, top1_of = _score(test, records, "top1")
    return RunSummary(
        name=run.name,
        path=str(run.path),
        state=state.name,
        step=state.step,
        steps=state.steps,
        bleu=bleu,
        bleu_of=bleu_of,
        top1=top1,
        top1_of=top1_of,
        scores=read_all_scores(run),
        test=test.to_json() if test else None,
        bytes=folder_bytes(run.path),
        last_change=state.as_of,
    )


def _score(
    test: FinalScore | None, records: list[dict[str, Any]], metric: str
) -> tuple[float | None, str | None]:
    """The test score if there is one, otherwise the best validation score; and which of the two it is."""
    if test is not None and metric in test.metrics:
        return test.metrics[metric], "test"
    valid = [
        record[metric] for record in records if record["kind"] == "valid" and record.get(metric) is not None
    ]
    return (max(valid), "validation") if valid else (None, None)


def prune_runs(folder: Path) -> int:
    """Remove the checkpoints that no longer serve, of every run that is not being trained; bytes freed.

    The best, the last and, where the recipe scores an average, those that are averaged stay.
    """
    from echelon.train.checkpoint import list_checkpoints, prune_checkpoints

    freed = 0
    for run in list_runs(folder):
        found = list_checkpoints(run.checkpoints)
        if run.is_locked() or not found:
            continue
        recipe = load_recipe(run.recipe)
        keep, every = 1, None
        if recipe.evaluate.final == "average":
            keep, every = recipe.checkpoint.average, recipe.checkpoint.fixed_interval
        before = folder_bytes(run.checkpoints)
        prune_checkpoints(run.checkpoints, keep, found[-1].load_state().best, every)
        freed += before - folder_bytes(run.checkpoints)
    return freed


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total
