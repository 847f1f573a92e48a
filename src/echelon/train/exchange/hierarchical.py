"""The exact exchange in two levels: inside each host first, then between hosts.

A ring over all workers sends 2 (n-1)/n of the gradient through each card; this sends 2 (h-1)/h for h hosts, in as many
connections side by side as a host has workers.
"""

from __future__ import annotations

from torch import Tensor

from echelon.comm.group import Group
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets, ends_at_parameters
from echelon.train.exchange.codecs import Unchanged
from echelon.train.exchange.line import Line
from echelon.train.exchange.traits import ExchangeTraits


class Hierarchical(AllReduce):
    """Sums the flat gradient buffer over hosts that have the same number of workers each."""

    def __init__(self, group: Group, num_local: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, bucket_bytes)
        self.traits = ExchangeTraits("hierarchical", is_replicated=True)
        self._num_local = num_local

    def connect(self, sums: Tensor) -> None:
        line = Line(self.group, Unchanged(sums.dtype), self._num_local)
        ends = ends_at_parameters(self.flat, self._bucket_bytes)
        self.buckets = Buckets(self.flat, sums, ends, line.start_sum)
