"""A learning curve of another run, and whether this one is on track against it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from echelon.errors import UserError
from echelon.explain.answers import Answer
from echelon.explain.curves import Numbers, smooth
from echelon.explain.history import History
from echelon.explain.units import show_count, show_share
from echelon.monitor.means import smoothing_width

_STEP_NAMES = ("step", "steps", "last_printed_step", "global_step", "iteration")
_LOSS_NAMES = ("train_loss", "training_loss", "loss", "nll", "value")
_NEAR = 0.05
"""Losses that differ by less are on track."""


@dataclass(frozen=True)
class Reference:
    """Steps, and the training loss at each."""

    name: str
    steps: tuple[float, ...]
    losses: tuple[float, ...]

    @classmethod
    def load(cls, path: Path) -> Reference:
        """From a CSV file with a column of steps and one of losses; UserError if it has none."""
        try:
            with open(path, newline="", encoding="utf-8-sig") as file:
                rows = list(csv.DictReader(file))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{path}: cannot be read: {error}") from None
        names = {name.strip().lower(): name for name in (rows[0] if rows else {}) if name}
        step = next((names[name] for name in _STEP_NAMES if name in names), None)
        loss = next((names[name] for name in _LOSS_NAMES if name in names), None)
        if step is None or loss is None:
            raise UserError(
                f"{path}: needs a column `step` and one of {', '.join(_LOSS_NAMES)} in its first line"
            )
        try:
            points = sorted((float(row[step]), float(row[loss])) for row in rows if row[step] and row[loss])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}: {error}") from None
        if len(points) < 2:
            raise UserError(f"{path}: has fewer than two points")
        return cls(path.name, tuple(at for at, _ in points), tuple(value for _, value in points))

    def at(self, steps: Numbers, width: int) -> Numbers:
        """The loss at those steps, smoothed over `width` steps."""
        return smooth(np.interp(steps, self.steps, self.losses), width)

    def step_of(self, loss: float, width: int) -> float | None:
        """The step at which the reference, smoothed over `width` steps, first reached a loss; None if it never did."""
        steps = np.arange(self.steps[0], self.steps[-1] + 1)
        return next(iter(steps[self.at(steps, width) <= loss]), None)

    def points(self) -> list[tuple[float, float]]:
        """Points for a chart."""
        return list(zip(self.steps, map(float, smooth(self.losses)), strict=True))


def answer_reference(reference: Reference, history: History) -> Answer:
    """Whether a run is where the reference was at the same step."""
    question = f"Is it on track against {reference.name}?"
    steps, losses = map(np.asarray, history.losses())
    is_known = (steps >= reference.steps[0]) & (steps <= reference.steps[-1])
    if not is_known.any():
        return Answer("reference", question, "unknown", "The reference has none of this run's steps.")
    steps, losses = steps[is_known], losses[is_known]
    # One width for both: a mean over more of a falling curve is higher.
    width = smoothing_width(len(steps))
    last, own, known = steps[-1], float(smooth(losses, width)[-1]), float(reference.at(steps, width)[-1])
    same, off = reference.step_of(own, width), own / known - 1
    evidence = [
        f"at step {show_count(last)}: smoothed training loss {own:.4g} here, {known:.4g} there ({off:+.1%})",
        f"the reference reached {own:.4g} at step {show_count(same)}"
        if same is not None
        else f"the reference never reached {own:.4g}",
    ]
    if abs(off) <= _NEAR:
        return Answer(
            "reference", question, "on track", f"Yes: the losses differ by {show_share(abs(off))}.", evidence
        )
    word, verdict = ("lower", "ahead") if off < 0 else ("higher", "behind")
    sentence = (
        f"It is {verdict}: the loss is {show_share(abs(off))} {word} than the reference's at the same step."
    )
    return Answer("reference", question, verdict, sentence, evidence)
