"""Extrapolation of learning curves: power-law fits, and how far real curves stray from them.

    loss(s) = floor + scale x s^-power

The power is searched, floor and scale follow by least squares; several beginnings are left out in turn, because curves
bend differently there. The law has a largest power, and near zero the fits often end there: every loss would be
expected to halve. What is expected is therefore the geometric mean of two losses: the median of the fits, and the
curve's own slope continued.

The interval comes from the slope on double logarithmic axes, d ln loss / d ln step. A rate that falls late makes a
curve steeper than it was; a model that has learnt all it can makes it flat. The constants below were chosen so that
nine of ten real curves stay between these slopes (tests/explain/test_real_curves.py). No loss in the interval is below
zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echelon.explain.uncertainty import Estimate
from echelon.monitor.means import smoothing_width

Numbers = NDArray[np.float64]
FEWEST_POINTS = 8
FEWEST_SCORINGS = 5
"""Each is the mean of a whole validation set, and so has less noise than a step's loss."""
_POWERS = np.geomspace(0.3, 1.0, 40)
"""Losses of one training fall between these powers of the step; a freer search takes noise for a trend."""
_LEFT_OUT = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the curve's beginning."""
_STEEPER, _BENT_STEEPER, _BEND = 2.5, 1.5, 0.15
"""The steepest slope that a curve may go on with: so many times its own, fewer if it has become flatter already, and
this more."""
_BENT = 0.8
"""A curve has become flatter whose slope is less than this share of what it was."""
_FLATTER = 0.25
"""The flattest, relative to its own; a curve that falls faster than 1 / step may stop at any moment."""
_NOISE = 1.64
"""Standard deviations on either side of a mean that hold 90% of a normal distribution."""
_LEAST = 1e-4
"""Of a curve's highest value: what is less counts as this in logarithms."""
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
    """Several fits of one curve, its slopes and its noise."""

    fits: tuple[Fit, ...]
    slope: float
    """The power of the step with which its second half falls; 0 if it does not."""
    slopes: tuple[float, float]
    """The flattest and the steepest slope with which it may continue, in the same unit."""
    noise: float
    """Of the natural logarithm of two means: the last one seen, and a later one."""
    last_step: float
    last: float
    """The smoothed loss at the last step seen."""

    def at(self, step: float) -> Estimate:
        """The smoothed loss at a later step, with its 90% interval; both are above zero."""
        values, later = self._continuations(step), step / self.last_step
        expected = float(np.sqrt(np.median(values) * self.last * later**-self.slope))
        flattest, steepest = (later**-slope for slope in self.slopes)
        low = self.last * steepest * float(np.exp(-_NOISE * self.noise))
        high = self.last * flattest * float(np.exp(_NOISE * self.noise))
        return Estimate(expected, min(low, *values), max(high, *values))

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
    """How a curve has risen again; None if it has not, or by no more than its noise explains."""
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


def forecast(steps: Sequence[float], losses: Sequence[float], width: int | None = None) -> Forecast | None:
    """Fit a curve smoothed over `width` points (as `smooth`); None if it has too few points."""
    x, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    kept = np.isfinite(y) & (x > 0) & (y >= 0)
    x, y = x[kept], y[kept]
    if len(x) < (FEWEST_SCORINGS if width == 1 else FEWEST_POINTS) or not y.max():
        return None
    late = [x >= share * x[-1] for share in _LEFT_OUT]
    fits = [fit_power_law(x[part], y[part]) for part in late if part.sum() >= FEWEST_POINTS // 2]
    smoothed = np.maximum(smooth(y, width), _LEAST * y.max())
    logs = np.log(np.maximum(y, _LEAST * y.max()))[len(y) // 2 :]
    noise = float(np.std(np.diff(logs))) / np.sqrt(2) if len(logs) > 1 else 0.0
    points = width or smoothing_width(len(y))
    slope = max(0.0, _slope(x, smoothed, 0.5, 1.0) or 0.0)
    return Forecast(
        fits=tuple(fits) or (fit_power_law(x, y),),
        slope=slope,
        slopes=_slopes(slope, _slope(x, smoothed, 0.25, 0.5)),
        noise=noise * float(np.sqrt(2 / points)),
        last_step=float(x[-1]),
        last=float(smoothed[-1]),
    )


def _slopes(own: float, before: float | None) -> tuple[float, float]:
    """Between which powers of the step a curve may go on falling, by that of its second half and of the quarter
    before."""
    is_bent = before is not None and own < _BENT * before
    flattest = _FLATTER * own / max(1.0, own**2)
    return flattest, (_BENT_STEEPER if is_bent else _STEEPER) * own + _BEND


def _slope(steps: Numbers, smoothed: Numbers, first: float, last: float) -> float | None:
    """The exponent with which a part of a curve falls; None if it has too few points."""
    part = (steps >= first * steps[-1]) & (steps <= last * steps[-1])
    return -_line(np.log(steps[part]), np.log(smoothed[part]))[0] if part.sum() >= 3 else None


def fit_power_law(steps: Numbers, losses: Numbers) -> Fit:
    """The power law nearest to the points; its floor is not below zero, and it does not rise."""
    scale_x = steps[-1]
    best: Fit | None = None
    for power in _POWERS:
        basis = (steps / scale_x) ** -power
        slope, floor = _falling_line(basis, losses)
        error = float(np.sqrt(np.mean((floor + slope * basis - losses) ** 2)))
        if best is None or error < best.error:
            best = Fit(floor, slope * float(scale_x) ** power, float(power), error)
    assert best is not None
    return best


def _line(x: Numbers, y: Numbers) -> tuple[float, float]:
    """Slope and intercept by least squares."""
    spread = x - x.mean()
    total = float(spread @ spread)
    slope = float(spread @ (y - y.mean())) / total if total > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())


def _falling_line(x: Numbers, y: Numbers) -> tuple[float, float]:
    """The same, with both constrained to be at least zero."""
    slope, intercept = _line(x, y)
    if slope < 0:
        return 0.0, float(y.mean())
    if intercept < 0:
        return float(x @ y) / float(x @ x), 0.0
    return slope, intercept
