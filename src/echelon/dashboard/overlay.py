"""Curves of several runs for one chart: over the same axis, smoothed, and as the mean and the spread of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from echelon.dashboard.run_curves import RunCurves
from echelon.dashboard.thinning import AXES, VALUE, Rows, ThinnedCurve
from echelon.explain.curves import Numbers, smooth

Axis = Literal["step", "time", "seen", "money"]
_COLUMN = {"step": "step", "time": "seconds", "seen": "seen", "money": "host_seconds"}
CHARTS: dict[str, tuple[str, ...]] = {
    "loss": ("loss", "valid/loss"),
    "learning_rate": ("learning_rate",),
    "gradient_norm": ("gradient_norm",),
    "speed": ("speed",),
    "step_time": ("seconds",),
    "phases": ("phase/",),
    "bytes": ("received", "sent"),
    "network": ("network/",),
    "processors": ("processors/",),
    "gpus": ("gpus/",),
    "memory": ("memory/",),
}
"""The curves of each chart; what ends in a slash stands for all curves below it. Scores have charts, `valid/KEY`."""
_GRID = 300
"""Places at which the curves of a group are compared."""
_DIGITS = 6
"""Significant ones: more cannot be seen."""


@dataclass(frozen=True)
class View:
    """How curves are to be drawn."""

    chart: str
    axis: Axis = "step"
    smoothing: int | None = None
    """Steps; None: the twentieth of the curve so far that reports use. 0: none."""
    hourly: float | None = None
    """A host's price; without one, the axis of money counts host hours."""


def overlay_curves(runs: Iterable[tuple[str, RunCurves]], view: View) -> list[dict[str, Any]]:
    """Each run's curves: the thinned points as they were recorded, and beside them the smoothed curve."""
    found = []
    for key, curves in runs:
        for name in _names(curves, view.chart):
            points, means = curves.curves[name].points(), smoothed_means(curves.curves[name], name, view)
            has_smoothed = view.smoothing != 0 and not _is_exact(name)
            found.append(
                {
                    "run": key,
                    "name": name,
                    "x": _listed(_places(points, view)),
                    "y": _listed(points[:, VALUE]),
                    "smooth_x": _listed(_places(means, view)) if has_smoothed else [],
                    "smooth_y": _listed(means[:, VALUE]) if has_smoothed else [],
                }
            )
    return found


def group_curves(groups: Mapping[str, Sequence[RunCurves]], view: View) -> list[dict[str, Any]]:
    """The mean of each group's smoothed curves, and their sample standard deviation around it."""
    found = []
    for label, members in groups.items():
        names = sorted({name for curves in members for name in _names(curves, view.chart)})
        for name in names:
            own = [
                smoothed_means(curves.curves[name], name, view) for curves in members if name in curves.curves
            ]
            lines = [(_places(means, view), means[:, VALUE]) for means in own if len(means)]
            if not lines:
                continue
            places, mean, spread = mean_and_spread(lines)
            found.append(
                {
                    "group": label,
                    "name": name,
                    "runs": len(lines),
                    "x": _listed(places),
                    "mean": _listed(mean),
                    "low": _listed(mean - spread),
                    "high": _listed(mean + spread),
                }
            )
    return found


def mean_and_spread(lines: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers, Numbers]:
    """Over places that at least one curve reaches: of those that do, the mean and the sample standard deviation."""
    first, last = min(places[0] for places, _ in lines), max(places[-1] for places, _ in lines)
    grid = np.linspace(first, last, _GRID) if last > first else np.array([first])
    values = np.array([np.interp(grid, *line, left=np.nan, right=np.nan) for line in lines])
    counts = np.isfinite(values).sum(axis=0)
    kept, counts = counts > 0, counts[counts > 0]
    values = values[:, kept]
    mean = np.nansum(values, axis=0) / counts
    squares = np.nansum((values - mean) ** 2, axis=0)
    return grid[kept], mean, np.sqrt(squares / np.maximum(1, counts - 1))


def smoothed_means(curve: ThinnedCurve, name: str, view: View) -> Rows:
    """A curve's buckets with smoothed values, or as they are."""
    means = curve.means().copy()
    if view.smoothing == 0 or _is_exact(name) or not len(means):
        return means
    width = None if view.smoothing is None else max(1, round(view.smoothing / curve.bucket_points))
    means[:, VALUE] = smooth(means[:, VALUE], width)
    return means


def _is_exact(name: str) -> bool:
    """Whether a curve has no noise: scores on the validation set are means already, and the schedule is known."""
    return name.startswith("valid/") or name == "learning_rate"


def _names(curves: RunCurves, chart: str) -> list[str]:
    wanted = CHARTS.get(chart, (chart,) if chart.startswith("valid/") else ())
    return [
        name
        for name in sorted(curves.curves)
        if any(name == each or (each.endswith("/") and name.startswith(each)) for each in wanted)
    ]


def _places(rows: Rows, view: View) -> Numbers:
    places: Numbers = rows[:, AXES.index(_COLUMN[view.axis])]
    return place_on(view, places)


def place_on(view: View, places: Numbers) -> Numbers:
    """Places in the unit of the axis: host seconds become dollars, or hours."""
    if view.axis != "money":
        return places
    return places / 3600 * (1.0 if view.hourly is None else view.hourly)


def _listed(values: Numbers) -> list[float]:
    """Numbers for JSON with as many digits as can be told apart."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.where(values == 0, 0.0, np.floor(np.log10(np.abs(values))))
    scale = 10.0 ** np.clip(_DIGITS - 1 - size, -300, 300)
    listed: list[float] = (np.round(values * scale) / scale).tolist()
    return listed
