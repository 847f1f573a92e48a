"""The exact exchange in two levels: inside each host first, then between hosts.

A ring over all workers sends 2 (n-1)/n of the gradient through each card; this sends 2 (h-1)/h for h hosts, in as many
connections side by side as a host has workers.
"""

from __future__ import annotations

from echelon.comm.group import Group
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets
from echelon.train.exchange.codecs import Float32
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.line import Line
from echelon.train.exchange.traits import ExchangeTraits


class Hierarchical(GradientExchange):
    """Sums the flat gradient buffer over hosts that have the same number of workers each."""

    def __init__(self, group: Group, num_local: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, ExchangeTraits("hierarchical"))
        self._num_local, self._bucket_bytes = num_local, bucket_bytes

    def start(self) -> None:
        line = Line(self.group, Float32(), self._num_local)
        self.buckets = Buckets(self.flat, self.flat.gradients, self._bucket_bytes, line.start_sum)

    def reduce(self) -> None:
        assert self.buckets is not None, "a host is a level only if there are several"
        self.buckets.finish_beside(self.group.start_all_reduce(self.flat.sums))
