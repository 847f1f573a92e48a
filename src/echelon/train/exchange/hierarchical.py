"""The exact exchange in two levels: inside each host first, then between hosts, where every host's card is used once.

Each of a host's k workers adds up a k-th of a bucket for its host, sums it with the workers of the same place on the
other hosts, and hands the result back to its neighbours. A ring over all workers would send 2 (n-1)/n of the gradient
through each card; this sends 2 (h-1)/h for h hosts, in k connections side by side.
"""

from __future__ import annotations

from echelon.comm.group import Group
from echelon.train.exchange.buckets import BUCKET_BYTES
from echelon.train.exchange.codecs import Float32
from echelon.train.exchange.compressed import Compressed, Line


class Hierarchical(Compressed):
    """Sums the flat gradient buffer over hosts that have the same number of workers each."""

    name = "hierarchical"

    def __init__(self, group: Group, num_local: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, Float32(), bucket_bytes)
        self._num_local = num_local

    def make_line(self) -> Line:
        size, k = self.group.size, self._num_local
        hosts = [list(range(first, first + k)) for first in range(0, size, k)]
        places = [list(range(place, size, k)) for place in range(k)]
        scattering, gathering, across = (self.group.part(parts) for parts in (hosts, hosts, places))
        return Line(self.group, Float32(), (scattering, gathering), across)


def workers_on_each_host(local_ranks: list[int]) -> int | None:
    """How many workers each host has, ranks lying host by host; None where they do not have the same number."""
    k = max(local_ranks) + 1
    expected = [rank % k for rank in range(len(local_ranks))]
    return k if local_ranks == expected and len(local_ranks) % k == 0 else None
