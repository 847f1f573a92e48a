"""The exact exchange on one host: gradients lie in memory that all workers see, and each worker sums a part of them.

On loopback an all-reduce copies everything through the kernel, on cores that are busy with backward.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from echelon.comm.group import Group
from echelon.comm.shared import shared_buffers
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES


class HostSum(AllReduce):
    """Sums the flat gradient buffer over the workers of one host, in the order of their ranks.

    Where they can share no memory it is the all-reduce that it is a kind of.
    """

    def __init__(self, group: Group, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, bucket_bytes)
        self._buffers: list[Tensor] = []

    @property
    def is_in_memory(self) -> bool:
        return bool(self._buffers)

    def start(self) -> None:
        """Move the gradients to where all workers see them. Collective."""
        can_move = self.flat.reduced.device.type == "cpu"
        self._buffers = (shared_buffers(self.group, len(self.flat.reduced)) if can_move else None) or []
        if self.is_in_memory:
            self.name = "host_sum"
            self.flat.move_gradients(self._buffers[self.group.rank])
        else:
            super().start()

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext() if self.is_in_memory else super().slot(last)

    def reduce(self) -> None:
        if not self.is_in_memory:
            super().reduce()
            return
        rank = self.group.rank
        mine, parts = self._buffers[rank], _parts(len(self._buffers[rank]), self.group.size)
        self.group.barrier()  # every backward is over
        total = self._buffers[0][parts[rank]].clone()
        for buffer in self._buffers[1:]:
            total += buffer[parts[rank]]
        mine[parts[rank]] = total
        self.group.barrier()  # every part is summed
        for other, part in enumerate(parts):
            if other != rank:
                mine[part] = self._buffers[other][part]
        self.group.barrier()  # every worker has every part: now they may change


def _parts(length: int, count: int) -> list[slice]:
    return [slice(number * length // count, (number + 1) * length // count) for number in range(count)]
