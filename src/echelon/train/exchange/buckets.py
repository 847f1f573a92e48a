"""The flat gradient buffer in pieces that go out while backward is still running."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from echelon.comm.group import Pending
from echelon.train.flat import FlatParameters

BUCKET_BYTES = 8 * 2**20


@dataclass
class _Bucket:
    """A slice of the flat buffer that is reduced as one."""

    flat: Tensor
    num_parameters: int = 0
    num_ready: int = 0

    @property
    def is_ready(self) -> bool:
        return self.num_ready >= self.num_parameters


def ends_at_parameters(flat: FlatParameters, bucket_bytes: int) -> list[int]:
    """Where buckets end that hold at least so many bytes of whole parameters."""
    ends = [0]
    for s in flat.slices:
        if s.end - ends[-1] >= bucket_bytes // 4 or s.end == flat.size:
            ends.append(s.end)
    return ends[1:]


class Buckets:
    """Slices of the gradients, each handed to `start` as soon as this worker's last backward has finished it.

    Every worker starts them in the same order, whatever order its backward finished them in, and a worker without a
    slot starts them all in `finish`: collectives always match.
    """

    def __init__(
        self, flat: FlatParameters, buffer: Tensor, ends: Sequence[int], start: Callable[[Tensor], Pending]
    ) -> None:
        """`buffer` begins with `flat.gradients`, in which buckets end where `ends` say; what follows the gradients goes
        with the last bucket."""
        self._start = start
        self._pending: list[Pending] = []
        self._is_last_slot = False
        self._buckets: list[_Bucket] = []
        for begin, end in pairwise([0, *ends]):
            has_rest = end == flat.size
            self._buckets.append(_Bucket(buffer[begin : len(buffer) if has_rest else end]))
        for s in flat.slices:
            # Of several if a bucket ends within the parameter.
            buckets = self._buckets[bisect_right(ends, s.start) : bisect_left(ends, s.end) + 1]
            for bucket in buckets:
                bucket.num_parameters += 1
            flat.on_gradient(s, self._hook(buckets))

    def _hook(self, buckets: Sequence[_Bucket]) -> Callable[[Tensor], None]:
        def gradient_is_ready(_: Tensor) -> None:
            if self._is_last_slot:
                for bucket in buckets:
                    bucket.num_ready += 1
                self._start_ready()

        return gradient_is_ready

    @contextlib.contextmanager
    def slot(self, last: bool) -> Iterator[None]:
        """Wraps forward and backward of one slot; in this worker's last one, finished buckets go out at once."""
        self._is_last_slot = last
        yield
        self._is_last_slot = False

    def _start_ready(self) -> None:
        while len(self._pending) < len(self._buckets) and self._buckets[len(self._pending)].is_ready:
            self._start_next()

    def _start_next(self) -> None:
        self._pending.append(self._start(self._buckets[len(self._pending)].flat))

    def finish(self) -> None:
        """Start what backward has not, and wait for all. Collective."""
        while len(self._pending) < len(self._buckets):
            self._start_next()
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
        for bucket in self._buckets:
            bucket.num_ready = 0

    def finish_beside(self, sums: Pending) -> None:
        """Finish while another sum is under way, which is waited for too. Collective."""
        self.finish()
        sums.wait()
