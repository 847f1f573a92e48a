"""The exact exchange: gradients are summed over the workers, in buckets, while backward is still running."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from echelon.comm.group import Group, Pending
from echelon.train.flat import FlatParameters


@dataclass
class _Bucket:
    """A slice of the flat buffer that is reduced as one."""

    flat: Tensor
    num_parameters: int
    num_ready: int = 0

    @property
    def is_ready(self) -> bool:
        return self.num_ready >= self.num_parameters


@dataclass
class AllReduce:
    """Sums the flat gradient buffer over a group.

    Every worker starts the buckets in the same order, whatever order its backward finished them in, and a
    worker without a slot starts them all in `update`: collectives always match.
    """

    group: Group
    bucket_bytes: int = 8 * 2**20
    _buckets: list[_Bucket] = field(default_factory=list)
    _pending: list[Pending] = field(default_factory=list)
    _is_last_slot: bool = False

    def attach(self, flat: FlatParameters) -> None:
        """Cut `flat` into buckets and watch its parameters' gradients."""
        if self.group.size == 1:
            return
        limit = self.bucket_bytes // 4
        start, members = 0, 0
        for number, s in enumerate(flat.slices):
            members += 1
            is_final = number == len(flat.slices) - 1
            if s.end - start >= limit or is_final:
                end = len(flat.reduced) if is_final else s.end
                self._buckets.append(_Bucket(flat.reduced[start:end], members))
                start, members = s.end, 0
            hook = self._hook(_bucket_number(self._buckets, members))
            s.parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def _hook(self, number: int) -> Callable[[Tensor], None]:
        def gradient_is_ready(_: Tensor) -> None:
            if self._is_last_slot:
                self._buckets[number].num_ready += 1
                self._start_ready_buckets()

        return gradient_is_ready

    @contextlib.contextmanager
    def slot(self, last: bool) -> Iterator[None]:
        """Wraps forward and backward of one slot; in this worker's last one, finished buckets go out at once."""
        self._is_last_slot = last
        yield
        self._is_last_slot = False

    def _start_ready_buckets(self) -> None:
        while len(self._pending) < len(self._buckets) and self._buckets[len(self._pending)].is_ready:
            self._start_next()

    def _start_next(self) -> None:
        self._pending.append(self.group.start_all_reduce(self._buckets[len(self._pending)].flat))

    def update(self, apply: Callable[[], None]) -> None:
        """Finish the sum, then call `apply`, which updates the local weights. Collective."""
        while len(self._pending) < len(self._buckets):
            self._start_next()
        for pending in self._pending:
            pending.wait()
        self._pending.clear()
        for bucket in self._buckets:
            bucket.num_ready = 0
        apply()

    def settle(self) -> None:
        """Weights are equal after every update: nothing to do."""


def _bucket_number(buckets: list[_Bucket], members: int) -> int:
    """The bucket of the parameter just placed: the open one, or the one it has just closed."""
    return len(buckets) if members else len(buckets) - 1
