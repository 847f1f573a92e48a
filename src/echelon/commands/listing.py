"""`runs`: which runs there are, how far they are, how good they are; and making room."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echelon.monitor.records import is_number, read_records
from echelon.monitor.run_state import read_state
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder, list_runs, read_json

_SHOWN = ("bleu", "chrf", "top1", "top5", "loss")


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
    """Test BLEU where the run was scored, otherwise the best validation BLEU."""
    bleu_of: str | None
    bytes: int
    last_change: float
    """Seconds since the epoch."""
    top1: float | None = None
    """Of image classification, in percent: test or best validation top-1."""
    top1_of: str | None = None
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """What `evaluate` has found on each set, by its name."""


def summarise_runs(folder: Path) -> list[RunSummary]:
    """Every run below `folder`."""
    return [summarise(run) for run in list_runs(folder)]


def summarise(run: RunFolder) -> RunSummary:
    """How a run stands, from its records."""
    records = read_records(run.worker_records(0))
    state = read_state(run, records)
    bleu, bleu_of = _score(run, records, "bleu")
    top1, top1_of = _score(run, records, "top1")
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
        bytes=folder_bytes(run.path),
        last_change=state.as_of,
    )


def _score(run: RunFolder, records: list[dict[str, Any]], metric: str) -> tuple[float | None, str | None]:
    """The test score where there is one, otherwise the best validation score; and which of the two it is."""
    test = read_scores(run, "test") or {}
    if metric in test:
        return test[metric], "test"
    valid = [
        record[metric] for record in records if record["kind"] == "valid" and record.get(metric) is not None
    ]
    return (max(valid), "valid") if valid else (None, None)


def read_scores(run: RunFolder, split: str) -> dict[str, Any] | None:
    """A split's scores; None where it was not scored, or the file is damaged: `echelon evaluate` makes it anew."""
    try:
        scores = read_json(run.score_file(split))
    except (OSError, ValueError):
        return None
    is_right = isinstance(scores, dict) and all(
        scores.get(name) is None or is_number(scores[name]) for name in _SHOWN
    )
    return scores if is_right else None


def read_all_scores(run: RunFolder) -> dict[str, dict[str, float]]:
    """The scores of every set that the run was scored on, by its name."""
    found = {file.stem: read_scores(run, file.stem) for file in sorted(run.scores.glob("*.json"))}
    return {
        name: {metric: scores[metric] for metric in _SHOWN if scores.get(metric) is not None}
        for name, scores in found.items()
        if scores is not None
    }


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
