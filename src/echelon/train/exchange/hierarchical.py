"""The exact exchange in two levels: inside each host first, then between hosts.

A ring over all workers sends 2 (n-1)/n of the gradient through each card; this sends 2 (h-1)/h for h hosts, in as many
connections side by side as a host has workers.
"""

from __future__ import annotations

from echelon.comm.group import Group
from echelon.train.exchange.buckets import BUCKET_BYTES
from echelon.train.exchange.codecs import Float32
from echelon.train.exchange.compressed import Compressed


class Hierarchical(Compressed):
    """Sums the flat gradient buffer over hosts that have the same number of workers each."""

    name = "hierarchical"

    def __init__(self, group: Group, num_local: int, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, Float32(), bucket_bytes, num_local)


def workers_on_each_host(local_ranks: list[int]) -> int | None:
    """How many workers each host has, ranks lying host by host; None where they do not have the same number."""
    k = max(local_ranks) + 1
    expected = [rank % k for rank in range(len(local_ranks))]
    return k if local_ranks == expected and len(local_ranks) % k == 0 else None


def level_size(local_ranks: list[int]) -> int:
    """How many workers each host has where adding up host by host makes sense; 1 where it does not."""
    num_local = workers_on_each_host(local_ranks)
    return num_local if num_local is not None and num_local < len(local_ranks) else 1
