"""The loss and the speed of a run as they are shown everywhere: terminal, page, report and comparison.

The loss is the mean of the last twentieth of the steps so far. Speed is targets over seconds of all steps with the
current workers but the first twentieth, during which caches fill and libraries load; scoring and saving between steps
are not in it.
"""

from __future__ import annotations

import bisect
import math
from array import array
from typing import Any

from echelon.monitor.records import is_number

_SHARE = 0.05


def smoothing_width(points: int) -> int:
    """The smoothing window of a curve of `count` points: a twentieth, but at least three."""
    return max(3, round(_SHARE * points))


def warm_up_steps(steps: int) -> int:
    """How many of the first steps to leave out as warm-up; none if there are only a few."""
    return math.ceil(_SHARE * steps) if steps > 20 else 0


class StepMeans:
    """Both of them, updated step by step, for readers that see each step once, as it comes."""

    def __init__(self) -> None:
        self._steps, self._loss_steps = array("q"), array("q")
        # Sums of all values so far, so that a mean is one subtraction however many values it is of.
        self._targets, self._seconds, self._losses = array("d", [0.0]), array("d", [0.0]), array("d", [0.0])
        self._layout: tuple[Any, ...] | None = None
        self._layout_step = 0

    def resume(self, record: dict[str, Any]) -> None:
        """Continue from a `start` record; with other workers, speed is counted anew."""
        layout = tuple(record.get(key) for key in ("workers", "hosts", "host", "exchange"))
        if self._layout not in (None, layout):
            self._layout_step = record["step"]
        self._layout = layout
        self.go_back(record["step"])

    def go_back(self, step: int) -> None:
        """Forget the steps after `step`: a start makes them again."""
        kept = bisect.bisect_right(self._steps, step)
        del self._steps[kept:], self._targets[kept + 1 :], self._seconds[kept + 1 :]
        kept = bisect.bisect_right(self._loss_steps, step)
        del self._loss_steps[kept:], self._losses[kept + 1 :]

    def add(self, record: dict[str, Any]) -> None:
        """Count a `step` record."""
        self._steps.append(record["step"])
        self._targets.append(self._targets[-1] + record["targets"])
        self._seconds.append(self._seconds[-1] + record["seconds"])
        if is_number(record.get("loss")):
            self._loss_steps.append(record["step"])
            self._losses.append(self._losses[-1] + record["loss"])

    @property
    def loss(self) -> float | None:
        """The loss; None before any step had a finite one."""
        count = len(self._loss_steps)
        width = min(count, smoothing_width(count))
        return (self._losses[-1] - self._losses[-1 - width]) / width if width else None

    @property
    def per_second(self) -> float:
        before = bisect.bisect_right(self._steps, self._layout_step)
        first = before + warm_up_steps(len(self._steps) - before)
        seconds = self._seconds[-1] - self._seconds[first]
        return (self._targets[-1] - self._targets[first]) / seconds if seconds else 0.0
