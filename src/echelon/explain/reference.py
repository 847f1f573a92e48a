"""A learning curve of another run, and whether this one is on track against it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from echelon.errors import UserError
from echelon.explain.answers import Answer
from echelon.explain.curves import smooth
from echelon.explain.history import History
from echelon.explain.wording import show_count, show_share

_STEP_NAMES = ("step", "steps", "last_printed_step", "global_step", "iteration")
_LOSS_NAMES = ("train_loss", "training_loss", "loss", "nll", "value")
_NEAR = 0.05
"""Losses that differ by less are on track."""


@dataclass(frozen=True)
class Reference:
    """Steps, and the smoothed training loss at each."""

    name: str
    steps: tuple[float, ...]
    losses: tuple[float, ...]

    @classmethod
    def load(cls, path: Path) -> Reference:
        """From a CSV file with a column of steps and one of losses; UserError where it has none."""
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
        smoothed = smooth([value for _, value in points])
        return cls(path.name, tuple(at for at, _ in points), tuple(map(float, smoothed)))

    def at(self, step: float) -> float:
        return float(np.interp(step, self.steps, self.losses))

    def step_of(self, loss: float) -> float | None:
        """Where the reference reached a loss first; None where it never did."""
        return next((step for step, value in self.points() if value <= loss), None)

    def points(self) -> list[tuple[float, float]]:
        return list(zip(self.steps, self.losses, strict=True))


def answer_reference(reference: Reference, history: History) -> Answer:
    """Whether a run is where the reference was at the same step."""
    question = f"Is it on track against {reference.name}?"
    steps, losses = history.losses()
    if not losses or steps[-1] < reference.steps[0]:
        return Answer(
            "reference", question, "unknown", "The reference has no step as early as this run's last."
        )
    last = min(steps[-1], reference.steps[-1])
    own = float(np.interp(last, steps, smooth(losses)))
    known, same = reference.at(last), reference.step_of(own)
    off = own / known - 1
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
