"""Scores of a run: what its training measured on the test set when it ended, and what `evaluate` found on any set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echelon.monitor.records import is_number, read_records, training_records
from echelon.recipe.tasks import all_scores
from echelon.runfolder import RunFolder, read_json


@dataclass(frozen=True)
class FinalScore:
    """A run's score on the test set, with everything needed to compare it."""

    metrics: dict[str, float]
    checkpoint: str
    step: int
    signature: str

    def to_json(self) -> dict[str, Any]:
        return {
            **self.metrics,
            "checkpoint": self.checkpoint,
            "step": self.step,
            "signature": self.signature,
        }

    def __str__(self) -> str:
        """The scores, their checkpoint, and how they were computed."""
        shown = [
            f"{score.name} {self.metrics[score.key]:.2f}"
            for score in all_scores()
            if score.key in self.metrics
        ]
        shown += [f"loss {self.metrics['loss']:.4f}"] if "loss" in self.metrics else []
        return f"test {', '.join(shown)} (checkpoint {self.checkpoint}, step {self.step:,}; {self.signature})"


def final_score(run: RunFolder, records: Sequence[dict[str, Any]]) -> FinalScore | None:
    """The score on the test set that training ended with; if it had none, the one that `evaluate` found since.

    `records` are those of the first worker (`training_records`), so that scoring a finished run again, perhaps with
    another checkpoint or beam, does not change what the run is said to have reached.
    """
    found: dict[str, Any] | None = None
    began: dict[str, Any] | None = None
    for record in records:
        if record["kind"] == "score" and record.get("split") == "test" and _has_numbers(record):
            found = record
        elif record["kind"] == "start":
            began = record
        elif record["kind"] == "step" and began is not None:
            # The run was made longer: the score at its earlier end is not that of its present model.
            found, began = None, None
    if found is None:
        found = read_scores(run, "test")
        if found is not None and _is_outdated(found, records):
            found = None
    if found is None or not any(found.get(name) is not None for name in _metrics()):
        return None
    return FinalScore(
        {name: found[name] for name in _metrics() if found.get(name) is not None},
        str(found.get("checkpoint", "?")),
        found["step"] if isinstance(found.get("step"), int) else 0,
        str(found.get("signature", "no signature")),
    )


def _is_outdated(found: dict[str, Any], records: Sequence[dict[str, Any]]) -> bool:
    """Whether scores are those of an end after which the run was made longer."""
    ended = [record for record in records if record["kind"] == "score" and record.get("split") == "test"]
    return any(_score_of(record) == _score_of(found) for record in ended)


def _score_of(scores: dict[str, Any]) -> tuple[Any, Any]:
    return scores.get("checkpoint"), scores.get("step")


def read_scores(run: RunFolder, split: str) -> dict[str, Any] | None:
    """A split's scores; None if it was not scored, or the file is damaged: `echelon evaluate` writes it again."""
    try:
        scores = read_json(run.score_file(split))
    except (OSError, ValueError):
        return None
    return scores if isinstance(scores, dict) and _has_numbers(scores) else None


def scores_of(run: RunFolder, checkpoint: str, step: int) -> dict[str, dict[str, Any]]:
    """The scores of one checkpoint on the run's own sets, with the run's own settings, by set."""
    kept = [read_scores(run, file.stem) for file in sorted(run.scores.glob("*.json"))]
    ended = [
        record
        for record in training_records(read_records(run.worker_records(0)))
        if record["kind"] == "score" and _has_numbers(record)
    ]
    found = [scores for scores in (*kept, *ended) if scores is not None and not scores.get("settings")]
    return {
        scores["split"]: {name: value for name, value in scores.items() if name not in ("kind", "time")}
        for scores in found
        if scores.get("split") in ("test", "valid")
        and (scores.get("checkpoint"), scores.get("step")) == (checkpoint, step)
    }


def read_all_scores(run: RunFolder) -> dict[str, dict[str, float]]:
    """The scores of every set that the run was scored on, by its name."""
    found = {file.stem: read_scores(run, file.stem) for file in sorted(run.scores.glob("*.json"))}
    return {
        name: {metric: scores[metric] for metric in _metrics() if scores.get(metric) is not None}
        for name, scores in found.items()
        if scores is not None
    }


def _metrics() -> list[str]:
    """The scores of all tasks, and the loss."""
    return [*(score.key for score in all_scores()), "loss"]


def _has_numbers(scores: dict[str, Any]) -> bool:
    return all(scores.get(name) is None or is_number(scores[name]) for name in _metrics())
