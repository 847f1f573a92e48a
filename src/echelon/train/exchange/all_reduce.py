"""The exact exchange: gradients are summed over the workers, in buckets, while backward is still running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from echelon.comm.group import Group
from echelon.train.exchange.buckets import Buckets
from echelon.train.flat import FlatParameters


class AllReduce:
    """Sums the flat gradient buffer over a group; has no state of its own."""

    def __init__(self, group: Group, bucket_bytes: int = 8 * 2**20) -> None:
        self._group = group
        self._bucket_bytes = bucket_bytes
        self._buckets: Buckets | None = None

    def attach(self, flat: FlatParameters, _may_change: Callable[[], None] = lambda: None) -> None:
        if self._group.size > 1:
            self._buckets = Buckets(flat, flat.reduced, self._bucket_bytes, self._group.start_all_reduce)

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return self._buckets.slot(last) if self._buckets else nullcontext()

    def update(self, apply: Callable[[], None]) -> None:
        if self._buckets:
            self._buckets.finish()
        apply()

    def settle(self) -> None:
        """Weights are equal after every update: nothing to do."""

    def shared_state(self) -> dict[str, Tensor]:
        return {}

    def own_state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None: ...
