"""The uncertainty of a predicted step time, what it is due to, and what would reduce it.

What cannot be known before is a factor with a range that holds it nine times of ten: how near to its peak a device
comes, the line, how unequal the workers are, the input. The factors have nothing to do with each other, so it is
unlikely that all are bad at once: what each does to the step alone is added up as the root of the sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from echelon.explain.clusters import Cluster
from echelon.explain.hardware import NumberFormat
from echelon.explain.profile import Profile

Cause = Literal["compute", "line", "imbalance", "input"]
CAUSES: tuple[Cause, ...] = get_args(Cause)

_CHECKED: set[tuple[str, NumberFormat]] = {("T4", "float32"), ("V100", "half")}
"""Devices whose planned times were compared with runs that others published (tests/explain/test_published.py)."""
_CHECKED_SPREAD, _GPU_SPREAD, _CPU_SPREAD = 1.4, 2.5, 2.0
"""By what factor computing may be faster or slower than planned."""
_MEASURED_COMPUTE = (0.92, 1.10)
"""The same if it was measured: as factors on its time."""
_KNOWN_LINE = (0.85, 1.05)
"""What share of the rate that it is sold with a line has."""


@dataclass(frozen=True)
class Estimate:
    """A number with its lower and upper bounds."""

    expected: float
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Scenario:
    """Factors on the values that a prediction expects."""

    compute: float = 1.0
    """Factor on the time of all computing."""
    line: float = 1.0
    """Factor on the line's rate."""
    imbalance: float = 0.04
    """Standard deviation of the workers' computing time in a step, relative to its mean."""
    input: float = 1.0
    """Factor on the time that making the input ready takes."""


def scenarios(
    cluster: Cluster, number_format: NumberFormat, profile: Profile | None
) -> tuple[Scenario, Scenario, Scenario]:
    """Good, expected, and bad luck."""
    low, high = _KNOWN_LINE
    if cluster.line_range is not None:
        low, high = (rate / cluster.line_bytes_per_s for rate in cluster.line_range)
    if profile is not None:
        spread, (fast, slow) = max(0.02, profile.spread), _MEASURED_COMPUTE
        return (
            Scenario(fast, high, 0.0, 0.8),
            Scenario(1.0, 1.0, min(spread, 0.05)),
            Scenario(slow, low, 2 * spread, 1.25),
        )
    unknown = _GPU_SPREAD if cluster.device.is_gpu else _CPU_SPREAD
    if (cluster.device.name, number_format) in _CHECKED:
        unknown = _CHECKED_SPREAD
    return Scenario(1 / unknown, high, 0.0, 0.8), Scenario(), Scenario(unknown, low, 0.10, 1.25)


@dataclass(frozen=True)
class Range:
    """A step's time, what its range is due to, and the range if that were known."""

    seconds: Estimate
    cause: Cause
    narrowed: Estimate


def find_range(
    seconds: Callable[[Scenario], float], good: Scenario, expected: Scenario, bad: Scenario
) -> Range:
    """The range of `seconds`, from what each factor does to it alone."""
    base = seconds(expected)

    def effect(cause: Cause, lucky: float, unlucky: float) -> tuple[float, float]:
        values = [seconds(replace(expected, **{cause: value})) - base for value in (lucky, unlucky)]
        return max(0.0, -min(values)), max(0.0, *values)

    effects = {cause: effect(cause, getattr(good, cause), getattr(bad, cause)) for cause in CAUSES}
    cause = max(CAUSES, key=lambda name: sum(effects[name]))
    known = dict(effects)
    if cause == "compute":
        known[cause] = effect(cause, *_MEASURED_COMPUTE)
    elif cause == "line":
        known[cause] = effect(cause, *reversed(_KNOWN_LINE))
    return Range(_around(base, effects), cause, _around(base, known))


def _around(base: float, effects: Mapping[Cause, tuple[float, float]]) -> Estimate:
    less = math.hypot(*(down for down, _ in effects.values()))
    more = math.hypot(*(up for _, up in effects.values()))
    return Estimate(base, max(0.0, base - less), base + more)
