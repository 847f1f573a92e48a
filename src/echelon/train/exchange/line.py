"""Vectors summed over workers through a codec, in threads, while the main one computes.

Between hosts each worker adds up one part of a vector: all send it their encoded piece of that part, it sums in
float32, in the order of ranks, and sends the encoded sum to all. So everybody decodes the same bytes, and a card sends
those of a ring all-reduce, divided by what the encoding saves. Only bytes travel there, whatever the format.

If a host has k workers, its card would send k times that. Host by host, these first share their host's sum among
themselves in float32, a k-th each, and sum that with the workers of the same place on the other hosts.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.comm.group import Group
from echelon.train.exchange.codecs import Codec


@dataclass(frozen=True)
class _Levels:
    """The connections of one stage."""

    inside: Group
    """The workers of this host, or this worker alone if hosts are no level."""
    between: Group
    """Those of this worker's place on every host."""


class Line:
    """Sums vectors over a group in two stages, each in a thread and over connections of its own.

    While the sums of one bucket come back, the pieces of the next go out: the line is never idle.
    """

    def __init__(self, group: Group, codec: Codec, num_local: int = 1) -> None:
        """Host by host if each has `num_local` workers, ranks lying host by host. Collective."""
        self._group, self._codec = group, codec
        self._scattering, self._gathering = (_open_levels(group, num_local) for _ in range(2))
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"exchange-{stage}") for stage in (1, 2)]

    def start_sum(self, vector: Tensor, owed: Tensor | None = None) -> Reduction:
        """Begin to replace `vector` by its sum over the workers; `owed` is added, and becomes what was left out.

        All workers start the same sums in the same order.
        """
        sums = self._threads[0].submit(self._scatter, vector, owed)
        return Reduction(self._threads[1].submit(self._gather, vector, owed, sums), self._group)

    def _scatter(self, vector: Tensor, owed: Tensor | None) -> Tensor:
        """Send everybody its piece; the sum of the pieces that came."""
        inside, between, codec = self._scattering.inside, self._scattering.between, self._codec
        if owed is not None:
            vector += owed
            owed.zero_()
        part_P = vector
        if inside.size > 1:
            part_P = _sum(inside.all_to_all(_rows(vector, inside.size)))
        pieces_WN = _rows(part_P, between.size, codec.multiple)
        sent_WB = codec.encode(pieces_WN)
        sum_N = _sum(codec.decode(between.all_to_all(sent_WB)))
        if owed is not None:
            pieces_WN -= codec.decode(sent_WB)
            mine = self._part_of(owed)
            mine.copy_(pieces_WN.view(-1)[: len(mine)])
        return sum_N

    def _gather(self, vector: Tensor, owed: Tensor | None, sums: Future[Tensor]) -> None:
        """Send everybody the sum of this worker's piece, and put all sums in their places."""
        inside, between, codec = self._gathering.inside, self._gathering.between, self._codec
        sum_N = sums.result()
        sum_B = codec.encode(sum_N.unsqueeze(0))
        part_P = codec.decode(between.all_gather(sum_B)).view(-1)
        if owed is not None:
            mine = self._part_of(owed)
            piece = mine[between.rank * len(sum_N) :][: len(sum_N)]
            piece += (sum_N - codec.decode(sum_B)[0])[: len(piece)]
            # A step that is not finite is skipped, and not owed.
            mine.copy_(torch.where(mine.isfinite(), mine, 0.0))
        if inside.size > 1:
            width = math.ceil(len(vector) / inside.size)
            part_P = inside.all_gather(part_P[:width].unsqueeze(0)).view(-1)
        vector.copy_(part_P[: len(vector)])

    def _part_of(self, vector: Tensor) -> Tensor:
        """What this worker adds up for its host."""
        inside = self._scattering.inside
        width = math.ceil(len(vector) / inside.size)
        return vector[inside.rank * width :][:width]


class Reduction:
    """A sum on its way, which the launcher sees when it is waited for."""

    def __init__(self, future: Future[None], group: Group) -> None:
        self._future, self._group = future, group

    def wait(self) -> object:
        with self._group.heart.waiting():
            return self._future.result()


def _open_levels(group: Group, num_local: int) -> _Levels:
    if num_local == 1:
        return _Levels(Group(0, 1), group.channel())
    hosts = [list(range(first, first + num_local)) for first in range(0, group.size, num_local)]
    places = [list(range(place, group.size, num_local)) for place in range(num_local)]
    return _Levels(group.part(hosts), group.part(places))


def _sum(rows: Tensor) -> Tensor:
    """The sum of all rows in their own format: torch by itself adds whole numbers up in int64."""
    return rows.sum(dim=0, dtype=rows.dtype)


def _rows(vector: Tensor, count: int, multiple: int = 1) -> Tensor:
    """A copy in `count` rows of the same length, a multiple of `multiple`, with zeros at the end."""
    width = math.ceil(len(vector) / count / multiple) * multiple
    return F.pad(vector, (0, count * width - len(vector))).view(count, width)
