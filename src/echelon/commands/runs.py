"""`runs`: the runs of a folder with their progress and scores, and freeing disk space."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from echelon.errors import EchelonError, RunError
from echelon.monitor.records import is_number, read_records, standing_records, training_records
from echelon.monitor.run_state import read_state
from echelon.monitor.scores import FinalScore, final_score, read_all_scores
from echelon.recipe.loading import load_recipe
from echelon.recipe.tasks import RecipeDeclaration, find_task, less_is_better, main_scores
from echelon.runfolder import RunFolder, list_runs


@dataclass(frozen=True)
class OwnScore:
    """A score on one of the run's own sets."""

    value: float
    of: str
    """"test" or "validation"."""


@dataclass(frozen=True)
class RunSummary:
    """A run in one line."""

    name: str
    path: str
    state: str
    """`RunState.name`, or "damaged"; if the run's hosts were asked, also "waiting for hosts"."""
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
    """Test or best validation top-1 of image classification, in percent."""
    top1_of: str | None = None
    own_scores: dict[str, OwnScore] = field(default_factory=dict)
    """By metric, of those that a task asks for first: on the test set, otherwise the best on the validation set."""
    scores: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scores by `evaluate` on each set, by the set's name."""
    test: dict[str, Any] | None = None
    """The score on the test set at the end of training, with checkpoint, step and signature."""
    metrics: tuple[str, ...] = ("bleu", "top1")
    """Which of the metrics above the run's task has; all of them if its recipe cannot be read."""

    def to_json(self) -> dict[str, Any]:
        """The keys of --json; those of metrics that another task has are left out."""
        foreign = {
            key
            for metric in ("bleu", "top1")
            if metric not in self.metrics
            for key in (metric, f"{metric}_of")
        }
        return {key: value for key, value in asdict(self).items() if key not in foreign | {"metrics"}}


def summarise_runs(folder: Path) -> list[RunSummary]:
    """Every run below `folder`; one that cannot be read does not hide the others."""
    return [_summarise_any(run) for run in list_runs(folder)]


def _summarise_any(run: RunFolder) -> RunSummary:
    try:
        return summarise(run)
    except RunError:  # `status` says why
        size, changed = folder_bytes(run.path), run.recipe.stat().st_mtime
        return RunSummary(run.name, str(run.path), "damaged", 0, None, None, None, size, changed)


def summarise(run: RunFolder) -> RunSummary:
    """A run's state, from its records."""
    metrics = _find_metrics(run)  # first: reading the recipe tells what a user's own task is scored by
    records = training_records(read_records(run.worker_records(0)))
    state, test = read_state(run, records), final_score(run, records)
    found = {score.key: _score(test, records, score.key) for score in main_scores()}
    own = {key: OwnScore(*score) for key, score in found.items() if score is not None}
    (bleu, bleu_of), (top1, top1_of) = (found.get(key) or (None, None) for key in ("bleu", "top1"))
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
        own_scores=own,
        scores=read_all_scores(run),
        test=test.to_json() if test else None,
        metrics=metrics,
        bytes=folder_bytes(run.path),
        last_change=state.as_of,
    )


def _find_metrics(run: RunFolder) -> tuple[str, ...]:
    try:
        task: RecipeDeclaration = find_task(load_recipe(run.recipe).task)
    except EchelonError:
        return RunSummary.metrics
    return tuple(score.key for score in task.scores)


def _score(test: FinalScore | None, records: list[dict[str, Any]], metric: str) -> tuple[float, str] | None:
    """The test score if there is one, otherwise the best validation score; and which of the two it is."""
    if test is not None and metric in test.metrics:
        return test.metrics[metric], "test"
    scored = standing_records(
        records, lambda record: record["kind"] == "valid" and is_number(record.get(metric))
    )
    valid = [float(record[metric]) for record in scored]
    best = min if less_is_better(metric) else max
    return (best(valid), "validation") if valid else None


def prune_runs(folder: Path, tell: Callable[[str], None] = lambda _: None) -> int:
    """Remove unneeded checkpoints of every run that is not being trained; return the bytes freed.

    A run that is damaged, or whose folder leads elsewhere, stays as it is, and `tell` gets the reason.

    Keeps the best, the last and, if the recipe scores an average, the checkpoints that are averaged.
    """
    freed = 0
    for run in list_runs(folder):
        try:
            freed += _prune(run.require())
        except EchelonError as error:
            tell(f"not pruned: {error}")
    return freed


def _prune(run: RunFolder) -> int:
    from echelon.train.checkpoint import list_checkpoints, prune_checkpoints

    found = list_checkpoints(run.checkpoints)
    if run.is_locked() or not found:
        return 0
    recipe = load_recipe(run.recipe)
    keep, every = 1, None
    if recipe.evaluate.final == "average":
        keep, every = recipe.checkpoint.average, recipe.checkpoint.fixed_interval
    before = folder_bytes(run.checkpoints)
    prune_checkpoints(run.checkpoints, keep, found[-1].load_state().best, every)
    return before - folder_bytes(run.checkpoints)


def folder_bytes(folder: Path) -> int:
    """Size of all files below a folder; files that vanish meanwhile count as 0."""
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size if file.is_file() else 0
    return total
