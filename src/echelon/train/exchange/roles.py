"""Who serves and who trains in a run with parameter servers; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from echelon.train.flat import Slice

ProcessRole = Literal["chief", "worker", "server"]


@dataclass(frozen=True)
class Roles:
    """Ranks by what they do. The chief is the first worker: it also writes the weights of checkpoints."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    def of(self, rank: int) -> ProcessRole:
        if rank not in self.workers:
            return "server"
        return "chief" if rank == self.workers[0] else "worker"


def share_roles(local_ranks: Sequence[int], servers: int) -> Roles:
    """Servers are the last processes of each host, host by host, so that they have different network cards.

    Rank 0 always trains. A process alone does both.
    """
    if len(local_ranks) == 1:
        return Roles((0,), (0,))
    last_first = sorted(range(1, len(local_ranks)), key=lambda rank: (-local_ranks[rank], -rank))
    serving = sorted(last_first[:servers])
    return Roles(tuple(rank for rank in range(len(local_ranks)) if rank not in serving), tuple(serving))


def share_parameters(slices: Sequence[Slice], servers: int) -> list[slice]:
    """A part for each server, of about the same size: whole parameters, as they lie in the flat buffers."""
    size = slices[-1].end
    borders = [0]
    for number in range(1, servers):
        ideal = number * size / servers
        borders.append(max(borders[-1], min((s.end for s in slices), key=lambda end: abs(end - ideal))))
    return [slice(start, end) for start, end in pairwise([*borders, size])]
