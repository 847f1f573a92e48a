"""DiLoCo: replicas of the model train by themselves for many steps, then agree.

Every replica takes its share of each step's slots and updates its own weights with its own optimiser. Every `every`
steps the mean way that the replicas have gone since they last agreed is taken for a gradient, and an outer Nesterov
step follows it. The exchange may run behind the next inner steps, always `overlap` of them: the result depends on the
recipe and not on the line. With an outer rate of 1 and no momentum this is local SGD: weights are averaged.

The number of replicas is the recipe's. A replica may have several workers, which sum their gradients; a worker with
several replicas trains them in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from echelon.comm.group import Group, Pending
from echelon.recipe import schema
from echelon.recipe.workers import share_of
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets, ends_at_parameters
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.line import Line
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Update

_VELOCITY = "velocity"


@dataclass
class _Replica:
    """One replica while another is in the model's place."""

    weights: Tensor
    running: Tensor
    optimiser: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class _Sync:
    """An agreement under way."""

    step: int
    share: float
    """Of a whole round's steps: less than 1 if it was asked for sooner."""
    way: Tensor
    """Becomes the mean way that the replicas have gone."""
    reduction: Pending | None
    running_RC: Tensor
    """The running statistics of every replica, which are averaged."""
    running_sum: Pending | None
    left_at: dict[int, Tensor]
    """Where each replica of this worker stood when it began."""


class LocalSteps(GradientExchange):
    """Replicas that agree every `settings.every` steps."""

    def __init__(self, group: Group, settings: schema.ExchangeSettings, num_local: int = 1) -> None:
        """They agree host by host if each has `num_local` workers."""
        super().__init__(group, ExchangeTraits("local", period=settings.every, shares_updates=False))
        self._settings, self._num_local = settings, num_local
        self._codec = build_codec(settings.outer_wire)
        self._hosted = replicas_of(group.rank, group.size, settings.replicas)
        self._team = Group(0, 1)
        self._away: dict[int, _Replica] = {}
        self._present = self._hosted[0]
        self._agreed: Tensor | None = None
        self._sync: _Sync | None = None
        self._has_moved = False
        """Whether a replica has learnt anything since the last agreement began."""
        self._votes: tuple[Tensor, Pending] | None = None
        self._step = 0
        self._agreed_at = 0
        """The step at which the last agreement began."""

    def attach(
        self, flat: FlatParameters, optimiser: FlatOptimiser | None, may_change: Callable[[], None]
    ) -> None:
        assert optimiser is not None, "every replica has an optimiser"
        self._optimiser = optimiser
        super().attach(flat, optimiser, may_change)

    def start(self) -> None:
        self._velocity = torch.zeros_like(self.flat.weights)
        if self.group.size > 1:
            self._line = Line(self.group, self._codec, self._num_local)
            self._team = self.group.part(teams(self.group.size, self._settings.replicas), self.group.heart)
        if self._team.size > 1:
            ends = ends_at_parameters(self.flat, BUCKET_BYTES)
            self.buckets = Buckets(self.flat, self.flat.reduced, ends, self._team.start_all_reduce)

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        self._step = step
        if self._agreed is None:
            self._stand_together()
        if self._sync is None and not self._has_moved:
            self._agreed_at = step - 1
        for replica in self._hosted:
            self._enter(replica)
            slots = share_of(num_slots, replica, self._settings.replicas)
            mine = slots[slice_of(share_of(len(slots), self._team.rank, self._team.size))]
            yield Update(slots, mine)

    def _stand_together(self) -> None:
        """Every replica begins with the weights in the model's place."""
        weights, running = self.flat.weights, self.flat.running
        self._agreed = weights.clone()
        others = [replica for replica in self._hosted if replica != self._present]
        self._away = {replica: _Replica(weights.clone(), running.clone()) for replica in others}

    def _enter(self, replica: int) -> None:
        """Put a replica's weights and optimiser into the model's place."""
        if replica == self._present:
            return
        self.may_change()
        state = {name: tensor.clone() for name, tensor in self._optimiser.state().items()}
        self._away[self._present] = _Replica(self.flat.weights.clone(), self.flat.running.clone(), state)
        coming = self._away.pop(replica)
        self.flat.weights.copy_(coming.weights)
        self.flat.running.copy_(coming.running)
        self._optimiser.load_state(coming.optimiser)
        self._present = replica

    def add_up(self) -> None:
        """Sum over the workers of one replica."""
        if self.buckets:
            self.buckets.finish()

    def after_update(self) -> None:
        """Once all replicas of this worker have taken the step, begin or end an agreement if it is time to."""
        self._has_moved = True
        if self._present != self._hosted[-1]:
            return
        self._share_votes()
        if self._sync is not None and self._step >= self._sync.step + self._settings.overlap:
            self._finish_sync()
        if self._step % self._settings.every == 0:
            self._begin_sync()
            if self._settings.overlap == 0:
                self._finish_sync()

    def _share_votes(self) -> None:
        """Votes of all workers, those of the step before: nobody waits for them. The loss is this worker's own."""
        if self.group.size == 1:
            return
        votes = self.flat.votes.clone()
        before, self._votes = self._votes, (votes, self.group.start_all_reduce(votes))
        self.flat.votes.zero_()
        if before is not None:
            before[1].wait()
            self.flat.votes.copy_(before[0])

    def _weights(self, replica: int) -> Tensor:
        return self.flat.weights if replica == self._present else self._away[replica].weights

    def _running(self, replica: int) -> Tensor:
        return self.flat.running if replica == self._present else self._away[replica].running

    def _begin_sync(self) -> None:
        """Say how far this worker's replicas have gone, and how many there are of each."""
        agreed = self._agreed
        assert agreed is not None
        way = torch.zeros_like(agreed)
        for replica in self._hosted:
            way += agreed
            way -= self._weights(replica)
        way /= self._settings.replicas * self._team.size
        left_at = {replica: self._weights(replica).clone() for replica in self._hosted}
        running_RC = way.new_zeros(self._settings.replicas, len(self.flat.running))
        for replica in self._hosted if self._team.is_first else ():
            running_RC[replica] = self._running(replica)
        reduction, running_sum = None, None
        if self.group.size > 1:
            reduction = self._line.start_sum(way)
            running_sum = self.group.start_all_reduce(running_RC) if running_RC.numel() else None
        share = (self._step - self._agreed_at) / self._settings.every
        self._sync = _Sync(self._step, share, way, reduction, running_RC, running_sum, left_at)
        self._agreed_at, self._has_moved = self._step, False

    def _finish_sync(self) -> None:
        """The outer step; every replica keeps what it has learnt since the agreement began."""
        sync, self._sync, agreed = self._sync, None, self._agreed
        assert sync is not None
        assert agreed is not None
        for pending in (sync.reduction, sync.running_sum):
            if pending is not None:
                pending.wait()
        self.may_change()
        momentum = self._settings.outer_momentum
        self._velocity.mul_(momentum**sync.share).add_(sync.way)
        agreed.sub_(sync.way + sync.share * momentum * self._velocity, alpha=self._settings.outer_rate)
        for replica, left_at in sync.left_at.items():
            self._weights(replica).sub_(left_at).add_(agreed)
            self._running(replica).copy_(sync.running_RC.mean(0))

    def settle(self) -> None:
        """Agree now, whatever step it is, so that all hold the same weights. After a part of a round momentum carries
        them that part of its way: however often one asks, they do not go further for it."""
        if self._sync is not None:
            self._finish_sync()
        if self._has_moved:
            self._begin_sync()
            self._finish_sync()

    def state(self) -> ExchangeState:
        """The optimisers of this worker's replicas; of several workers of one replica the first one saves."""
        own = {
            f"{replica}/{name}": tensor
            for replica in (self._hosted if self._team.is_first else ())
            for name, tensor in self._optimiser_of(replica).items()
        }
        return ExchangeState({_VELOCITY: self._velocity}, own)

    def optimiser_part(self) -> dict[str, Tensor]:
        """Each replica's is among this worker's own state."""
        return {}

    def _optimiser_of(self, replica: int) -> dict[str, Tensor]:
        if replica == self._present:
            return self._optimiser.state()
        return self._away[replica].optimiser if replica in self._away else {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The weights have been loaded before. A replica that was lost with its host takes another's optimiser."""
        if self._votes is not None:
            self._votes[1].wait()
        self._stand_together()
        self._sync, self._votes, self._has_moved = None, None, False
        self._velocity.copy_(tensors.get(_VELOCITY, torch.zeros(())))
        saved: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            number, _, rest = name.partition("/")
            if number.isdigit():
                saved.setdefault(int(number), {})[rest] = tensor
        for replica in self._hosted:
            state = saved.get(replica) or next(iter(saved.values()), {})
            if replica == self._present:
                self._optimiser.load_state(state)
            else:
                self._away[replica].optimiser = dict(state)


def replicas_of(rank: int, size: int, replicas: int) -> range:
    """The replicas that worker `rank` takes part in: one, or several if there are fewer workers."""
    if size <= replicas:
        return share_of(replicas, rank, size)
    mine = rank * replicas // size
    return range(mine, mine + 1)


def teams(size: int, replicas: int) -> list[list[int]]:
    """The ranks that belong together: those of one replica, or each worker alone."""
    if size <= replicas:
        return [[rank] for rank in range(size)]
    return [
        [rank for rank in range(size) if rank * replicas // size == replica] for replica in range(replicas)
    ]


def slice_of(numbers: range) -> slice:
    return slice(numbers.start, numbers.stop)
