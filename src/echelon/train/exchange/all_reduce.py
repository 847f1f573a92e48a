"""The exact exchange: gradients are summed over the workers, in buckets, while backward is still running."""

from __future__ import annotations

from echelon.comm.group import Group
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.traits import ExchangeTraits


class AllReduce(GradientExchange):
    """Sums the flat gradient buffer over a group; has no state of its own."""

    def __init__(self, group: Group, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, ExchangeTraits("all_reduce"))
        self._bucket_bytes = bucket_bytes

    def start(self) -> None:
        if self.group.size > 1:
            reduced = self.flat.reduced
            self.buckets = Buckets(self.flat, reduced, self._bucket_bytes, self.group.start_all_reduce)

    def reduce(self) -> None:
        if self.buckets:
            self.buckets.finish()
