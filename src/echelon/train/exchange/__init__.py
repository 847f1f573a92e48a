"""How workers agree on the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from torch import Tensor

from echelon.comm.group import Group
from echelon.comm.shared import are_on_one_host
from echelon.recipe.schema import Recipe
from echelon.recipe.workers import level_size
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.exchange.hierarchical import Hierarchical
from echelon.train.exchange.host_sum import HostSum
from echelon.train.exchange.local_steps import LocalSteps
from echelon.train.exchange.low_rank import LowRank
from echelon.train.exchange.parameter_server import ParameterServer
from echelon.train.exchange.sharded import Sharded
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits, Reduced
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Update


class Exchange(Protocol):
    """Owns the step's flat gradient buffer between backward and update."""

    @property
    def traits(self) -> ExchangeTraits: ...

    def attach(
        self, flat: FlatParameters, optimiser: FlatOptimiser | None, may_change: Callable[[], None]
    ) -> None:
        """`may_change` returns when state of the exchange may change: a save may still be copying it. Collective."""
        ...

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        """The updates of a step that this worker takes part in: one, or one for each replica that it hosts, or none if
        a parameter server gave the step to another worker."""
        ...

    def slot(self, last: bool) -> AbstractContextManager[None]:
        """Wraps forward and backward of one slot; `last` is this worker's last one of the update."""
        ...

    def reduce(self) -> Reduced:
        """Put the sum over the workers into the flat buffer, or say that all must compute the update's slots again.
        Collective."""
        ...

    def after_update(self) -> None:
        """What is to be done once the weights are updated. Collective."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the record of the step says of the exchange."""
        ...

    def settle(self) -> None:
        """Make the weights equal on all workers, before saving, evaluating and finishing. Collective."""
        ...

    def state(self) -> ExchangeState:
        """What a checkpoint must hold."""
        ...

    def optimiser_part(self) -> dict[str, Tensor] | None:
        """What this worker saves of an optimiser that is spread over the workers; None if all have the same one, whole.
        Collective."""
        ...

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over a checkpoint's shared and own state, perhaps from another number of workers; without any, start
        afresh."""
        ...


def build_exchange(recipe: Recipe, group: Group) -> Exchange:
    settings = recipe.exchange
    match recipe.train.exchange:
        case "all_reduce" | "auto":  # "auto" is still that if workers have one host
            if recipe.train.shard == "optimiser" and group.size > 1:
                return Sharded(group, settings.bucket_bytes, is_one_host=are_on_one_host(group))
            return build_exact(group, settings.bucket_bytes, settings.hierarchical)
        case "compressed":
            num_local = _level_size(group, settings.hierarchical)
            return Compressed(group, build_codec(settings.wire), settings.bucket_bytes, num_local)
        case "low_rank":
            num_local = _level_size(group, settings.hierarchical)
            return LowRank(group, settings.rank, build_codec(settings.wire), recipe.seed, num_local)
        case "local":
            return LocalSteps(group, settings, _level_size(group, settings.hierarchical))
        case "parameter_server":
            return ParameterServer(group, settings)


def build_exact(group: Group, bucket_bytes: int = BUCKET_BYTES, hierarchical: bool = False) -> Exchange:
    """Through memory if all workers are on one host, through the network otherwise; host by host if asked for.
    All ways give the same bits."""
    if are_on_one_host(group):
        return HostSum(group, bucket_bytes)
    num_local = _level_size(group, hierarchical)
    return Hierarchical(group, num_local, bucket_bytes) if num_local > 1 else AllReduce(group, bucket_bytes)


def _level_size(group: Group, hierarchical: bool) -> int:
    return level_size(group.local_ranks()) if hierarchical else 1
