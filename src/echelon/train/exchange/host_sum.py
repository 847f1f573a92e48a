"""The exact exchange of two workers on one host: gradients lie in memory that both see, and each sums half of them.

On loopback an all-reduce copies everything through the kernel, on cores that are busy with backward.
"""

from __future__ import annotations

from torch import Tensor

from echelon.comm.group import Group
from echelon.comm.shared import shared_buffers
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES
from echelon.train.exchange.traits import ExchangeTraits


class HostSum(AllReduce):
    """Sums the flat gradient buffers of two workers on one host.

    If they can share no memory, it is the all-reduce that it derives from.
    """

    def __init__(self, group: Group, bucket_bytes: int = BUCKET_BYTES) -> None:
        assert group.size == 2, "the sum of more numbers depends on their order"
        super().__init__(group, bucket_bytes)
        self._buffers: list[Tensor] = []

    @property
    def is_in_memory(self) -> bool:
        return bool(self._buffers)

    def start(self) -> None:
        """Move the gradients to where both workers see them. Collective."""
        can_move = self.flat.reduced.device.type == "cpu"
        self._buffers = (shared_buffers(self.group, len(self.flat.reduced)) if can_move else None) or []
        if self.is_in_memory:
            self.traits = ExchangeTraits("host_sum")
            self.flat.move_gradients(self._buffers[self.group.rank])
        else:
            super().start()

    def reduce(self) -> None:
        if not self.is_in_memory:
            super().reduce()
            return
        rank = self.group.rank
        mine, theirs = self._buffers[rank], self._buffers[1 - rank]
        middle = len(mine) // 2
        halves = slice(middle), slice(middle, None)
        my_half, their_half = halves[rank], halves[1 - rank]
        self.group.barrier()  # both backwards are over
        mine[my_half] += theirs[my_half]
        self.group.barrier()  # both halves are summed
        mine[their_half] = theirs[their_half]
        self.group.barrier()  # both workers have both halves: now they may change
