"""How workers agree on the weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from echelon.comm.group import Group
from echelon.comm.shared import are_on_one_host
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.host_sum import HostSum
from echelon.train.flat import FlatParameters


class Exchange(Protocol):
    """Owns the step's flat gradient buffer between backward and update."""

    def attach(self, flat: FlatParameters) -> None: ...

    def slot(self, last: bool) -> AbstractContextManager[None]:
        """Wraps forward and backward of one slot."""
        ...

    def update(self, apply: Callable[[], None]) -> None:
        """Agree with the others; `apply` is the local optimiser step. Collective."""
        ...

    def settle(self) -> None:
        """Make the weights equal on all workers, before saving, evaluating and finishing. Collective."""
        ...


def build_exchange(group: Group) -> Exchange:
    """Through memory where all workers are on one host, through the network otherwise."""
    return HostSum(group) if are_on_one_host(group) else AllReduce(group)
