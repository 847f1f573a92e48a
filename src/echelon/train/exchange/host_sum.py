"""The exact exchange of workers on one host: gradients lie in memory that all see, and each sums a part of them.

On loopback an all-reduce copies everything through the kernel, on cores that are busy with backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from echelon.comm.shared import shared_buffers
from echelon.recipe.workers import share_of
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.traits import ExchangeTraits


class HostSum(AllReduce):
    """Sums the flat gradient buffers of the workers of one host.

    If they can share no memory, it is the all-reduce that it derives from.
    """

    _buffers: list[Tensor] | None = None
    """Each worker's."""

    @property
    def is_in_memory(self) -> bool:
        return self._buffers is not None

    def make_buffer(self, length: int) -> Tensor:
        if self.flat.reduced.device.type == "cpu":
            self._buffers = shared_buffers(self.group, length)
        if self._buffers is None:
            return super().make_buffer(length)
        self.traits = ExchangeTraits("host_sum", is_replicated=True)
        return self._buffers[self.group.rank]

    def connect(self, sums: Tensor) -> None:
        if self._buffers is None:
            super().connect(sums)

    def add_up(self) -> None:
        if self._buffers is None:
            super().add_up()
            return
        rank, size = self.group.rank, self.group.size
        sums = [buffer.view(torch.int32) for buffer in self._buffers]
        parts = [share_of(len(sums[rank]), other, size) for other in range(size)]
        slices = [slice(part.start, part.stop) for part in parts]
        self.group.barrier()  # all backwards are over
        for other in range(size):
            if other != rank:
                sums[rank][slices[rank]] += sums[other][slices[rank]]
        self.group.barrier()  # all parts are summed
        for other in range(size):
            if other != rank:
                sums[rank][slices[other]] = sums[other][slices[other]]
        self.group.barrier()  # all workers have all parts: now they may change
