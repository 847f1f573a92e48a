"""What exchanges have in common whose workers all compute gradients and apply them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe.workers import share_of
from echelon.train.exchange.buckets import Buckets
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits, Reduced
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Update


class GradientExchange:
    """Sums gradients over a group; subclasses say how, in `start` and `add_up`."""

    def __init__(self, group: Group, traits: ExchangeTraits) -> None:
        self.group, self.traits = group, traits
        self.buckets: Buckets | None = None
        """What goes out while backward is still running; None if nothing does."""

    def attach(
        self, flat: FlatParameters, _optimiser: FlatOptimiser | None, may_change: Callable[[], None]
    ) -> None:
        self.flat, self.may_change = flat, may_change
        self.start()

    def start(self) -> None:
        """Make what needs `flat`. Collective."""

    def updates(self, _step: int, num_slots: int) -> Iterator[Update]:
        yield Update(range(num_slots), share_of(num_slots, self.group.rank, self.group.size))

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return self.buckets.slot(last) if self.buckets else nullcontext()

    def reduce(self) -> Reduced:
        self.add_up()
        return Reduced()

    def add_up(self) -> None:
        """Put the sum over the workers into the flat buffer. Collective."""
        raise NotImplementedError

    def after_update(self) -> None:
        """Nothing to do."""

    def facts(self) -> dict[str, Any]:
        return {}

    def settle(self) -> None:
        """Nothing to do."""

    def state(self) -> ExchangeState:
        return ExchangeState()

    def optimiser_part(self) -> dict[str, Tensor] | None:
        return None

    def load_state(self, tensors: Mapping[str, Tensor]) -> None: ...
