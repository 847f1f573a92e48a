"""How workers agree on the weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from echelon.comm.group import Group
from echelon.train.exchange.all_reduce import AllReduce
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
    return AllReduce(group)
