"""What the rest of training has to know about an exchange, and what an exchange keeps in checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from echelon.train.exchange.roles import ProcessRole


@dataclass(frozen=True)
class ExchangeTraits:
    """How an exchange couples its workers."""

    name: str
    """For the records; an exact sum goes one of several ways."""
    role: ProcessRole = "worker"
    """What this process does."""
    period: int = 1
    """Steps between two moments at which settling costs nothing."""
    is_in_step: bool = True
    """Whether workers are in the same step whenever they are between two; otherwise they meet in `settle`."""
    shares_updates: bool = True
    """Whether every worker makes every update, from the same gradient."""
    is_replicated: bool = False
    """Whether each worker, between two steps, has all that training needs: if others are lost, it continues with it,
    with the same bits."""


@dataclass(frozen=True)
class Reduced:
    """What came of a sum over the workers, beside the sum in the flat buffer."""

    whole_norm: float | None = None
    """The norm of the whole gradient if this worker has only a part of it."""
    must_repeat: bool = False
    """Whether there is no sum, and all workers must compute their slots again."""


@dataclass(frozen=True)
class ExchangeState:
    """Tensors by name that a checkpoint must hold."""

    shared: dict[str, Tensor] = field(default_factory=dict)
    """The same on all workers."""
    own: dict[str, Tensor] = field(default_factory=dict)
    """This worker's; the names tell workers apart."""
