"""Where a learning curve is going: a power law with a floor, fitted to what has been seen of it.

    loss(s) = floor + scale x s^-power

The power is searched, floor and scale follow by least squares. Curves bend differently at their beginning, so several
beginnings are left out in turn: how much the answers differ, and how noisy the curve is, make the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echelon.explain.cost import Estimate

Numbers = NDArray[np.float64]
FEWEST_POINTS = 8
_POWERS = np.geomspace(0.3, 1.0, 40)
"""Losses of one training fall between these powers of the step; a freer search takes noise for a trend."""
_LEFT_OUT = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the curve's beginning."""
_CLEAR_SHARE, _CLEAR_BENDS = 0.05, 4.0
"""A rise is clear that is more than this share of where the curve began, and than so many times its usual bend from
mean to mean: the lowest of many means lies far below the others by chance alone."""


@dataclass(frozen=True)
class Fit:
    """One power law."""

    floor: float
    scale: float
    power: float
    error: float
    """Root of the mean squared distance to the points."""

    def at(self, step: float) -> float:
        return float(self.floor + self.scale * step**-self.power)


@dataclass(frozen=True)
class Forecast:
    """Several fits of one curve, and its noise."""

    fits: tuple[Fit, ...]
    noise: float
    last_step: float
    last: float
    """The smoothed loss at the last step seen."""

    def at(self, step: float) -> Estimate:
        """The smoothed loss at a later step, never below the lowest floor."""
        values = self._continuations(step)
        middle = float(np.median(values))
        # Noise of a mean over as many points as smoothing takes, and what the fits do not agree on.
        spread = float(max(max(values) - middle, middle - min(values)) + 2 * self.noise)
        lowest = min(middle, *(fit.floor for fit in self.fits))
        return Estimate(middle, max(lowest, middle - spread), middle + spread)

    def gain(self, steps: float) -> Estimate:
        """How much `steps` more steps lower the loss; never negative, because training can be ended here."""
        gains = [self.last - value for value in self._continuations(self.last_step + steps)]
        return Estimate(float(np.median(gains)), min(gains), max(gains))

    def _continuations(self, step: float) -> list[float]:
        """Each fit's loss at a step, moved to begin at the last loss seen.

        A fit may lie far above the last losses, for example because the learning rate has fallen meanwhile. A gain
        counted from the fit could then be larger than the whole loss.
        """
        return [
            floor + (self.last - floor) * (step / self.last_step) ** -fit.power
            for fit in self.fits
            for floor in [min(fit.floor, self.last) if fit.scale else self.last]
        ]


def smoothing_width(points: int) -> int:
    """A twentieth of the points, but at least three."""
    return max(3, round(0.05 * points))


def smooth(values: Sequence[float] | Numbers, width: int | None = None) -> Numbers:
    """The mean of each point and those shortly before it: `width` points, by default a twentieth of those so far.

    The default depends on nothing that comes later, so runs with equal records have equal curves, however long each is.
    """
    numbers = np.asarray(values, dtype=float)
    sums = np.concatenate([[0.0], np.cumsum(numbers)])
    ends = np.arange(1, len(numbers) + 1)
    widths = width or np.maximum(3, np.round(0.05 * ends).astype(int))
    starts = np.maximum(0, ends - widths)
    result: Numbers = (sums[ends] - sums[starts]) / (ends - starts)
    return result


@dataclass(frozen=True)
class Rise:
    """From the lowest point of a curve to its last, both smoothed."""

    step: float
    """Where it was lowest."""
    lowest: float
    last_step: float
    last: float


def find_rise(steps: Sequence[float], losses: Sequence[float]) -> Rise | None:
    """How a curve has risen again; None where it has not, or by no more than its noise explains."""
    width = smoothing_width(len(losses))
    means = smooth(losses, width)[width - 1 :]
    if len(means) <= 2 * width:
        return None
    # A straight line, however steep, has no bends: what is left is noise, also such as lasts for some steps.
    bends = means[2 * width :] - 2 * means[width:-width] + means[: -2 * width]
    lowest = int(np.argmin(means))
    clear = max(_CLEAR_SHARE * float(means[0]), _CLEAR_BENDS * float(np.median(np.abs(bends))))
    if means[-1] - means[lowest] <= clear:
        return None
    return Rise(steps[lowest + width - 1], float(means[lowest]), steps[-1], float(means[-1]))


def forecast(steps: Sequence[float], losses: Sequence[float]) -> Forecast | None:
    """Fit a curve; None where there is too little of it."""
    x, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    kept = np.isfinite(y) & (x > 0)
    x, y = x[kept], y[kept]
    if len(x) < FEWEST_POINTS:
        return None
    smoothed = smooth(list(y))
    fits = []
    for share in _LEFT_OUT:
        late = x >= share * x[-1]
        if late.sum() >= FEWEST_POINTS // 2:
            fits.append(fit_power_law(x[late], y[late]))
    noise = float(np.median([fit.error for fit in fits])) / np.sqrt(smoothing_width(len(y)))
    return Forecast(tuple(fits), noise, float(x[-1]), float(smoothed[-1]))


def fit_power_law(steps: Numbers, losses: Numbers) -> Fit:
    """The power law nearest to the points; its floor is not below zero, and it does not rise."""
    scale_x = steps[-1]
    best: Fit | None = None
    for power in _POWERS:
        basis = (steps / scale_x) ** -power
        slope, floor = _line(basis, losses)
        error = float(np.sqrt(np.mean((floor + slope * basis - losses) ** 2)))
        if best is None or error < best.error:
            best = Fit(floor, slope * float(scale_x) ** power, float(power), error)
    assert best is not None
    return best


def _line(x: Numbers, y: Numbers) -> tuple[float, float]:
    """Slope and intercept by least squares, neither below zero."""
    spread = x - x.mean()
    total = float(spread @ spread)
    slope = float(spread @ (y - y.mean())) / total if total > 0 else 0.0
    intercept = float(y.mean() - slope * x.mean())
    if slope < 0:
        return 0.0, float(y.mean())
    if intercept < 0:
        return float(x @ y) / float(x @ x), 0.0
    return slope, intercept
