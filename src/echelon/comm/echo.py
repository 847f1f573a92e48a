"""A group whose other workers are imagined, to time what an exchange computes by itself."""

from __future__ import annotations

from torch import Tensor

from echelon.comm.group import Group, Pending
from echelon.monitor.heartbeat import Heart


class Echo(Group):
    """Sends nothing and takes no time, but counts bytes."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self.num_bytes = 0
        """The bytes of the buffers that would have been added up."""

    def all_reduce(self, tensor: Tensor) -> None:
        self.num_bytes += tensor.nbytes

    def start_all_reduce(self, tensor: Tensor) -> Pending:
        self.num_bytes += tensor.nbytes
        return _Done()

    def all_to_all(self, rows: Tensor) -> Tensor:
        self.num_bytes += rows.nbytes
        return rows.clone()

    def all_gather(self, row: Tensor) -> Tensor:
        return row.expand(self.size, -1).clone()

    def channel(self, heart: Heart | None = None) -> Group:
        return self

    def part(self, parts: list[list[int]], heart: Heart | None = None) -> Group:
        return Group(0, 1)


class _Done:
    """A collective that has completed."""

    def wait(self) -> object:
        return None
