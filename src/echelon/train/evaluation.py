"""Scoring a set with all workers; which direction is better; when to stop early."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from echelon.comm.group import Group
from echelon.files.checkpoint_layout import Best, TrainingState
from echelon.models.lora import merged
from echelon.recipe.schema import EarlyStop
from echelon.recipe.tasks import less_is_better
from echelon.runfolder import RunFolder, write_atomically, write_json
from echelon.tasks.task import Scores, Scoring
from echelon.train.precision import Precision
from echelon.train.weights import Weights

_LONGEST_NAME = 120


class _BrokenOffError(Exception):
    """This worker was told to stop while it was scoring."""


def score_together(
    scoring: Scoring,
    model: nn.Module,
    group: Group,
    precision: Precision,
    must_stop: Callable[[], bool] = lambda: False,
    *,
    show: Callable[[float], None] = lambda _: None,
) -> Scores | None:
    """Score a set, shared out over the workers; the same Scores everywhere, except for the references. Collective.

    `must_stop` is asked before every batch, and `show` told the share of this worker's work that is done. If any worker
    has to stop, all of them get None.
    """

    def on_batch(done: float) -> None:
        group.heart.beat()
        show(done)
        if must_stop():
            raise _BrokenOffError

    was_training = model.training
    model.eval()
    share: Any = None
    with merged(model), torch.inference_mode(), precision.autocast(), contextlib.suppress(_BrokenOffError):
        share = scoring.share(model, rank=group.rank, size=group.size, on_batch=on_batch)
    model.train(was_training)
    shares = group.gather_json(share)
    if None in shares:
        return None
    combined = scoring.combine(shares) if group.is_first else None
    told = group.broadcast_json(asdict(replace(combined, references=[])) if combined else None)
    return combined or Scores(**told)


def score_summary(scores: Scores, weights: Weights, split: str) -> dict[str, Any]:
    """The keys that `evaluate --json` promises."""
    return {
        **{name: round(value, 6) for name, value in scores.metrics.items()},
        "signature": scores.signature,
        "checkpoint": weights.label,
        "step": weights.step,
        "split": split,
    }


def save_scores(run: RunFolder, scores: Scores, summary: dict[str, Any], name: str | None = None) -> None:
    """Keep a set's scores and, one a line, its outputs and what they should have been, under its own name or another.

    References are kept so that runs can be compared wherever their folders are, with or without the data.
    """
    name = name or summary["split"]
    write_atomically(run.outputs_file(name), "".join(f"{line}\n" for line in scores.outputs))
    if scores.references:
        write_atomically(run.references_file(name), "".join(f"{line}\n" for line in scores.references))
    write_json(run.score_file(name), {**summary, **scores.details})


def trial_name(split: str, checkpoint: str | None, overrides: Sequence[str]) -> str:
    """The name under which the scores of another checkpoint, or with other settings, are kept: those of the run's own
    stay."""
    parts = [split, *([checkpoint] if checkpoint else []), *overrides]
    return re.sub(r"[^A-Za-z0-9_.]+", "-", "-".join(parts)).strip("-.")[:_LONGEST_NAME]


def improves(metric: str, value: float, best: float, min_delta: float = 0.0) -> bool:
    """Whether `value` is better than `best` by more than `min_delta`; a score that is not a number is the worst."""
    if math.isnan(value) or math.isnan(best):
        return math.isnan(best) and not math.isnan(value)
    gain = best - value if less_is_better(metric) else value - best
    return gain > min_delta


def note_best(state: TrainingState, metric: str, scores: Scores) -> bool:
    """Remember a new best score; whether this was one."""
    value = scores.metrics[metric]
    is_same = state.best is not None and state.best.metric == metric  # a run may resume with another metric
    if state.best is not None and is_same and not improves(metric, value, state.best.value):
        return False
    state.best = Best(state.step, metric, value)
    return True


def should_stop_early(state: TrainingState, rules: Sequence[EarlyStop], scores: Scores) -> bool:
    """Count the scorings without improvement; whether every rule's patience has run out."""
    for rule in rules:
        value = scores.metrics[rule.metric]
        wait = state.waits.get(rule.metric)
        if wait is None or improves(rule.metric, value, wait["best"], rule.min_delta):
            state.waits[rule.metric] = {"best": value, "scorings": 0}
        else:
            wait["scorings"] += 1
    return is_patience_over(state, rules)


def is_patience_over(state: TrainingState, rules: Sequence[EarlyStop]) -> bool:
    """Whether every rule's metric has gone without improvement for as long as it may; never without rules."""
    waits = [(state.waits.get(rule.metric, {"scorings": 0}), rule.patience) for rule in rules]
    return bool(rules) and all(wait["scorings"] >= patience for wait, patience in waits)
