"""Real learning curves, cut off at several points: the end lies in the interval that was foreseen.

Our own are in curves/, one file a run: the recipe it is a short variant of, what was set, losses by step, and scorings.
The published ones are not ours, and are looked for under ECHELON_DATA. The table is printed (`pytest -s`).
"""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from echelon.explain.curves import Forecast, forecast, smooth

CURVES = Path(__file__).parent / "curves"
CUTS = (0.25, 0.4, 0.5, 0.67, 0.8)
BEGUN = 10.0
"""Points from which a report foresees a score."""


@dataclass(frozen=True)
class Curve:
    """Something that falls: a loss, or what a score lacks of 100."""

    name: str
    kind: str
    steps: list[float]
    values: list[float]

    @property
    def width(self) -> int | None:
        return None if self.kind == "training" else 1

    @property
    def end(self) -> float:
        return float(smooth(self.values, self.width)[-1])

    def foresee(self, share: float) -> Forecast | None:
        """From the first part of it, as a report would; None if that is too little."""
        count = sum(step <= share * self.steps[-1] for step in self.steps)
        if self.kind == "score" and (not count or self.values[count - 1] > 100 - BEGUN):
            return None
        return forecast(self.steps[:count], self.values[:count], self.width)


def own_curves() -> list[Curve]:
    found = []
    for path in sorted(CURVES.glob("*.json")):
        run = json.loads(path.read_text())
        steps = [float(step) for step, _, _ in run["valid"]]
        found += [
            Curve(
                path.stem,
                "training",
                [float(step) for step, _ in run["losses"]],
                [y for _, y in run["losses"]],
            ),
            Curve(path.stem, "validation", steps, [loss for _, loss, _ in run["valid"]]),
            Curve(path.stem, "score", steps, [100.0 - score for _, _, score in run["valid"]]),
        ]
    return found


def published_curves(folder: Path) -> list[Curve]:
    found = []
    for path in sorted((folder / "published-curves").glob("*.csv")):
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file))
        kind = "training" if "train_loss" in rows[0] else "validation"
        x, y = ("step", "train_loss") if kind == "training" else ("last_printed_step", "val_loss")
        found.append(Curve(path.stem, kind, [float(row[x]) for row in rows], [float(row[y]) for row in rows]))
    return found


def check(curves: list[Curve]) -> tuple[int, int, list[str]]:
    """Cuts whose interval holds the end, all cuts, and a line for each curve."""
    held, cuts, lines = 0, 0, []
    for curve in curves:
        marks = []
        for share in CUTS:
            foreseen = curve.foresee(share)
            if foreseen is not None:
                estimate = foreseen.at(curve.steps[-1])
                assert 0 < estimate.low <= estimate.expected <= estimate.high
                is_held = curve.end in estimate
                held, cuts = held + is_held, cuts + 1
                marks.append(
                    f"{share:.0%} {estimate.low:.3g}..{estimate.high:.3g}{'' if is_held else ' MISSED'}"
                )
        lines.append(
            f"{curve.name:<38}{curve.kind:<12}{curve.end:>9.4g}   {'; '.join(marks) or 'too little to tell'}"
        )
    return held, cuts, lines


def test_the_end_of_our_own_runs_was_foreseen(capsys: pytest.CaptureFixture[str]) -> None:
    curves = own_curves()
    held, cuts, lines = check(curves)
    with capsys.disabled():
        print("\n" + "\n".join(lines), f"{len(curves)} curves: {held} of {cuts} cuts hold the end", sep="\n")
    assert held >= 0.85 * cuts
    assert sum(curve.foresee(0.8) is not None for curve in curves) >= 30


@pytest.mark.parametrize("kind", ["training", "validation", "score"])
def test_no_kind_of_curve_is_foreseen_much_worse_than_the_others(kind: str) -> None:
    held, cuts, _ = check([curve for curve in own_curves() if curve.kind == kind])
    assert held >= 0.8 * cuts


def median_error(curves: list[Curve], expected: Callable[[Forecast, float], float]) -> float:
    """Of all cuts: how far what was expected is from the end, as the logarithm of their ratio."""
    found = [(curve, curve.foresee(share)) for curve in curves for share in CUTS]
    return statistics.median(
        abs(float(np.log(expected(foreseen, curve.steps[-1]) / curve.end)))
        for curve, foreseen in found
        if foreseen is not None and curve.end > 0
    )


@pytest.mark.parametrize("kind", ["training", "validation", "score"])
def test_what_is_expected_is_nearer_than_a_half_and_than_no_change(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = [curve for curve in own_curves() if curve.kind == kind]
    ours = median_error(curves, lambda foreseen, step: foreseen.at(step).expected)
    same = median_error(curves, lambda foreseen, _: foreseen.last)
    half = median_error(curves, lambda foreseen, _: foreseen.last / 2)
    with capsys.disabled():
        print(f"\n{kind}: median error {ours:.3f}; no change {same:.3f}; half {half:.3f}")
    assert ours < 0.8 * min(half, same)


def test_the_end_of_published_curves_was_foreseen(
    real_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held, cuts, lines = check(published_curves(real_data))
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert cuts >= 10
    assert held >= 0.85 * cuts


@pytest.mark.parametrize("name", ["100mbit", "a"])
def test_a_published_curve_cut_at_two_thirds_is_foreseen_within_5_percent(real_data: Path, name: str) -> None:
    curve = next(each for each in published_curves(real_data) if each.name.endswith(f"-{name}-train"))
    foreseen = curve.foresee(0.67)
    assert foreseen is not None
    assert foreseen.at(curve.steps[-1]).expected == pytest.approx(curve.end, rel=0.05)
