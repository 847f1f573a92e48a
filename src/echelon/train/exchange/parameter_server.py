"""Parameter servers: the weights live on servers, each of which keeps a part; workers fetch them and send gradients.

A worker's step is three messages:

    ask    server 0: which step may I compute?       -> its number
    pull   every server: your part of the weights    -> the weights, and how many updates they have seen
    push   every server: its part of my gradient     (no answer)

Servers apply updates in the order of their numbers, so that all of them do the same. An update is made of

    synchronous     one push of every worker, each for its share of the step's slots; with backup workers, of so many
                    fewer: pushes that come later are dropped
    asynchronous    one push, for the whole step, of the worker that was given its number. Others' updates may lie
                    between its pull and its push: its *staleness*. A number is given out only while that cannot
                    become more than the recipe allows

Servers add up each other's part of the gradient's norm, for clipping, and of the workers' votes. What a vote asks for
happens everywhere after the same step: the next one that has not been given out yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe import schema
from echelon.train.exchange.mail import Mail
from echelon.train.exchange.roles import Roles, share_parameters, share_roles
from echelon.train.exchange.served_worker import ServedWorker
from echelon.train.exchange.shard_server import Server
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits, Reduced
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Update


class ParameterServer:
    """One process of such a run: a server or a worker, which both go through the same loop."""

    def __init__(self, group: Group, settings: schema.ExchangeSettings) -> None:
        self.group, self._settings = group, settings
        self.roles: Roles = share_roles(group.local_ranks(), settings.servers)
        role = self.roles.of(group.rank)
        self.traits = ExchangeTraits("parameter_server", role, is_in_step=False, shares_updates=False)
        self._keepers = group.gather_json(group.folder_keeper)
        self._copies: dict[str, Tensor] = {}
        """Of optimisers on hosts that share no folder with this one: every host's checkpoint is whole."""
        self._end: ServedWorker | Server | None = None

    def attach(
        self, flat: FlatParameters, optimiser: FlatOptimiser | None, may_change: Callable[[], None]
    ) -> None:
        assert optimiser is not None, "servers need an optimiser"
        self.flat, self._optimiser, self._may_change = flat, optimiser, may_change
        if self.group.size == 1:
            return
        heart = self.group.heart
        shards = share_parameters(flat.slices, len(self.roles.servers))
        self._shards = dict(zip(self.roles.servers, shards, strict=True))
        mail = Mail(self.group.channel(heart), flat, self._shards)
        servers = self.group.part([list(self.roles.servers), *([rank] for rank in self.roles.workers)], heart)
        if self.traits.role == "server":
            shard = self._shards[self.group.rank]
            optimiser.keep([shard])
            self._end = Server(mail, servers, self.roles, self._settings)
        else:
            optimiser.keep([])
            self._end = ServedWorker(mail, self.roles, self._settings, may_change)

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        if self._end is None:
            yield Update(range(num_slots), range(num_slots))
        else:
            yield from self._end.updates(step, num_slots)

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def reduce(self) -> Reduced:
        return Reduced(self._end.reduce() if self._end else None)

    def after_update(self) -> None:
        if self._end is not None:
            self._end.after_update()

    def settle(self) -> None:
        """Everybody gets every server's weights, after all updates that are on their way."""
        if self._end is None:
            return
        self._end.settle()
        self._may_change()
        if len(self.flat.running):
            self.group.broadcast(self.flat.running, self.roles.servers[0])
        for rank, shard in self._shards.items():
            self.group.broadcast(self.flat.weights[shard], rank)
            if self.group.sharers.size < self.group.size:
                part = self.group.broadcast_tensors(self._optimiser.state(), rank, self.flat.weights.device)
                if self._keepers[rank] != self.group.folder_keeper and self.group.keeps_folder:
                    self._copies |= part

    def facts(self) -> dict[str, Any]:
        """For the step's record: where this process stands, and whom it has sent how many bytes."""
        return self._end.facts() if self._end else {}

    def state(self) -> ExchangeState:
        return ExchangeState()

    def optimiser_part(self) -> dict[str, Tensor] | None:
        return self._optimiser.state() | self._copies if self._end is not None else None

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The weights, and the optimiser's part that this process keeps, have been loaded before."""
        if self._end is not None:
            self._end.begin_anew()
