"""A growing curve in bounded memory: buckets of equally many points, each with its lowest, its highest and its mean.

A spike of one step among a million stays visible, which means or every n-th point would lose. If there are too many
buckets, neighbours are merged, so a bucket is twice as wide from then on; what is kept does not depend on how the
points arrived.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
"""Points, one a row: the columns of AXES and the value."""
AXES = ("step", "seconds", "seen", "host_seconds")
"""What a curve can be drawn over: the step, seconds since the start, targets seen, seconds of all hosts."""
WIDTH = len(AXES) + 1
VALUE = WIDTH - 1
MOST_BUCKETS = 512


class ThinnedCurve:
    """A curve's points, thinned as they come."""

    def __init__(self) -> None:
        self.bucket_points = 1
        """Points of a bucket."""
        self._low, self._high, self._mean = _nothing(), _nothing(), _nothing()
        self._waiting = _nothing()
        """The newest points, too few for a bucket."""

    def extend(self, rows: Rows) -> None:
        """Add points in order; those that are not finite are left out."""
        waiting = np.concatenate([self._waiting, rows[np.isfinite(rows).all(axis=1)]])
        while count := min(len(waiting) // self.bucket_points, MOST_BUCKETS - len(self._mean)):
            used = count * self.bucket_points
            self._append(waiting[:used].reshape(count, self.bucket_points, WIDTH))
            waiting = waiting[used:]
            if len(self._mean) == MOST_BUCKETS:
                self._merge()
        self._waiting = waiting

    def _append(self, buckets: NDArray[np.float64]) -> None:
        numbers, values = np.arange(len(buckets)), buckets[:, :, VALUE]
        self._low = np.concatenate([self._low, buckets[numbers, values.argmin(axis=1)]])
        self._high = np.concatenate([self._high, buckets[numbers, values.argmax(axis=1)]])
        means = buckets[:, -1].copy()  # a mean stands at its last point, as `smooth` looks back
        means[:, VALUE] = values.mean(axis=1)
        self._mean = np.concatenate([self._mean, means])

    def _merge(self) -> None:
        """Make one bucket of every two."""
        self.bucket_points *= 2
        low, high = self._low.reshape(-1, 2, WIDTH), self._high.reshape(-1, 2, WIDTH)
        numbers = np.arange(len(low))
        self._low = low[numbers, low[:, :, VALUE].argmin(axis=1)]
        self._high = high[numbers, high[:, :, VALUE].argmax(axis=1)]
        means = self._mean[1::2].copy()
        means[:, VALUE] = (self._mean[::2, VALUE] + self._mean[1::2, VALUE]) / 2
        self._mean = means

    def go_back(self, step: float) -> None:
        """Forget what came after a step, because a restart makes it again; of a wide bucket, the whole bucket."""
        self._waiting = self._waiting[self._waiting[:, 0] <= step]
        kept = int(np.searchsorted(self._mean[:, 0], step, side="right"))
        if kept < len(self._mean):
            self._waiting = _nothing()
        self._low, self._high, self._mean = self._low[:kept], self._high[:kept], self._mean[:kept]

    def points(self) -> Rows:
        """The lowest and the highest point of each bucket, in order."""
        low, high = self._low, self._high
        if len(self._waiting):
            values = self._waiting[:, VALUE]
            low = np.concatenate([low, self._waiting[[values.argmin()]]])
            high = np.concatenate([high, self._waiting[[values.argmax()]]])
        is_later = low[:, 0] > high[:, 0]
        first, second = np.where(is_later[:, None], high, low), np.where(is_later[:, None], low, high)
        both: Rows = np.stack([first, second], axis=1).reshape(-1, WIDTH)
        is_new = np.ones(len(both), dtype=bool)
        is_new[1::2] = (first != second).any(axis=1)
        return both[is_new]

    def means(self) -> Rows:
        """The mean of each bucket, at its last point."""
        if not len(self._waiting):
            return self._mean
        last = self._waiting[[-1]].copy()
        last[0, VALUE] = self._waiting[:, VALUE].mean()
        means: Rows = np.concatenate([self._mean, last])
        return means

    @property
    def last_points(self) -> int:
        """Points that the last of `means` is of."""
        return len(self._waiting) or self.bucket_points

    def to_arrays(self) -> dict[str, Rows]:
        """What `from_arrays` makes an equal curve of."""
        return {
            "width": np.array([[float(self.bucket_points)]]),
            "low": self._low,
            "high": self._high,
            "mean": self._mean,
            "waiting": self._waiting,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Rows]) -> ThinnedCurve:
        """ValueError or KeyError if they are not those of a curve."""
        curve = cls()
        curve.bucket_points = int(arrays["width"][0, 0])
        curve._low, curve._high = arrays["low"], arrays["high"]
        curve._mean, curve._waiting = arrays["mean"], arrays["waiting"]
        parts = (curve._low, curve._high, curve._mean, curve._waiting)
        if any(part.ndim != 2 or part.shape[1] != WIDTH for part in parts) or curve.bucket_points < 1:
            raise ValueError("these are no points of a curve")
        return curve


def _nothing() -> Rows:
    return np.empty((0, WIDTH))
