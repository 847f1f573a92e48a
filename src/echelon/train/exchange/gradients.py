"""What exchanges have in common whose workers all compute gradients and apply them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe.workers import share_of
from echelon.train.exchange.buckets import Buckets
from echelon.train.exchange.roles import Role
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Turn


class GradientExchange:
    """Sums gradients over a group; subclasses say how, in `start` and `reduce`."""

    name: str
    role: Role = "worker"
    has_own_optimisers = False
    is_in_step = True
    period = 1

    def __init__(self, group: Group) -> None:
        self.group = group
        self.buckets: Buckets | None = None
        """What goes out while backward is still running; None where nothing does."""

    def attach(
        self, flat: FlatParameters, _optimiser: FlatOptimiser | None, may_change: Callable[[], None]
    ) -> None:
        self.flat, self.may_change = flat, may_change
        self.start()

    def start(self) -> None:
        """What is to be made once `flat` is known. Collective."""

    def turns(self, _step: int, num_slots: int) -> Iterator[Turn]:
        yield Turn(range(num_slots), share_of(num_slots, self.group.rank, self.group.size))

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return self.buckets.slot(last) if self.buckets else nullcontext()

    def update(self, apply: Callable[[], None]) -> None:
        self.reduce()
        apply()

    def reduce(self) -> None:
        """Put the sum over the workers into the flat buffer. Collective."""
        raise NotImplementedError

    def gradient_norm(self) -> float:
        return float(torch.linalg.vector_norm(self.flat.gradients))

    def facts(self) -> dict[str, Any]:
        return {}

    def settle(self) -> None:
        """Nothing to do."""

    def optimiser_part(self) -> dict[str, Tensor] | None:
        return None

    def shared_state(self) -> dict[str, Tensor]:
        return {}

    def own_state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None: ...
