"""What workers and parameter servers tell each other, and how many bytes that is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.train.flat import FlatParameters
from echelon.train.votes import NUM_VOTES

NUMBERS, GRADIENT, STATISTICS, ANSWER, WEIGHTS = range(5)
"""Tags, so that what is meant for one reader is never taken by another."""
TensorSpan = tuple[int, int, Tensor]
"""To or from a rank, with a tag."""


class Kind(IntEnum):
    """What a worker's message is."""

    ASK = 0
    PULL = 1
    PUSH = 2
    SETTLE = 3
    """All updates that this worker takes part in are on their way."""


@dataclass(frozen=True)
class Message:
    """What a worker tells a server, beside tensors."""

    kind: Kind
    first_step: int = 0
    """The step with which training began, also again from a checkpoint: what was sent before that does not count."""
    step: int = 0
    base: int = 0
    """PUSH: how many updates the weights had seen."""
    slots: int = 0
    """PUSH: of the step, in this gradient."""
    loss: float = 0.0
    votes: tuple[float, ...] = (0.0,) * NUM_VOTES

    def numbers(self) -> Tensor:
        values = (self.kind, self.first_step, self.step, self.base, self.slots, self.loss, *self.votes)
        return torch.tensor(values, dtype=torch.float64)

    @staticmethod
    def of(numbers: Tensor) -> Message:
        kind, first_step, step, base, slots, loss, *votes = numbers.tolist()
        return Message(Kind(int(kind)), int(first_step), int(step), int(base), int(slots), loss, tuple(votes))


@dataclass(frozen=True)
class Grant:
    """What server 0 tells a worker that has asked."""

    step: int
    """Which it may compute; 0 for none before `pause_at` is over."""
    pause_at: int
    """After which step all look at the votes; 0 for none."""
    norm: float
    """Of the last update's gradient."""
    votes: tuple[float, ...] = (0.0,) * NUM_VOTES

    def numbers(self) -> Tensor:
        return torch.tensor((self.step, self.pause_at, self.norm, *self.votes), dtype=torch.float64)

    @staticmethod
    def of(numbers: Tensor) -> Grant:
        step, pause_at, norm, *votes = numbers.tolist()
        return Grant(int(step), int(pause_at), norm, tuple(votes))


class Mail:
    """Messages between workers and servers, and how many bytes went to whom."""

    def __init__(self, group: Group, flat: FlatParameters, shards: dict[int, slice]) -> None:
        self.group, self.flat, self.shards = group, flat, shards
        self._sent: Counter[int] = Counter()

    def send(self, *parts: TensorSpan) -> None:
        """Returns when all of it has been received."""
        self.swap(parts, ())

    def receive(self, *parts: TensorSpan) -> None:
        self.swap((), parts)

    def swap(self, sent: Iterable[TensorSpan], received: Iterable[TensorSpan]) -> None:
        """Send and receive at once: a process that first sent might wait for one that waits for it."""
        pending = [self.group.start_receive(tensor, rank, tag) for rank, tag, tensor in received]
        for rank, tag, tensor in sent:
            pending.append(self.group.start_send(tensor, rank, tag))
            self._sent[rank] += tensor.nbytes
        for work in pending:
            work.wait()

    def take_sent(self) -> dict[str, int]:
        """Bytes sent since the last call, by rank."""
        sent, self._sent = self._sent, Counter()
        return {str(rank): count for rank, count in sorted(sent.items())}
