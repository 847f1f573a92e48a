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

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe import schema
from echelon.train.exchange.roles import Role, Roles, share_parameters, share_roles
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.slots import Turn, share_of

_NUM_VOTES = FlatParameters.NUM_EXTRAS - 1
_NUMBERS, _GRADIENT, _STATISTICS, _ANSWER, _WEIGHTS = range(5)
"""Tags, so that what is meant for one reader is never taken by another."""
Part = tuple[int, int, Tensor]
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
    era: int = 0
    """The step with which training began, or began anew from a checkpoint: what was sent before does not count."""
    step: int = 0
    base: int = 0
    """PUSH: how many updates the weights had seen."""
    slots: int = 0
    """PUSH: of the step, in this gradient."""
    loss: float = 0.0
    votes: tuple[float, ...] = (0.0,) * _NUM_VOTES

    def numbers(self) -> Tensor:
        values = (self.kind, self.era, self.step, self.base, self.slots, self.loss, *self.votes)
        return torch.tensor(values, dtype=torch.float64)

    @staticmethod
    def of(numbers: Tensor) -> Message:
        kind, era, step, base, slots, loss, *votes = numbers.tolist()
        return Message(Kind(int(kind)), int(era), int(step), int(base), int(slots), loss, tuple(votes))


@dataclass(frozen=True)
class Answer:
    """What server 0 tells a worker that has asked."""

    step: int
    """Which it may compute; 0 for none before `pause_at` is over."""
    pause_at: int
    """After which step all look at the votes; 0 for none."""
    norm: float
    """Of the last update's gradient."""
    votes: tuple[float, ...] = (0.0,) * _NUM_VOTES

    def numbers(self) -> Tensor:
        return torch.tensor((self.step, self.pause_at, self.norm, *self.votes), dtype=torch.float64)

    @staticmethod
    def of(numbers: Tensor) -> Answer:
        step, pause_at, norm, *votes = numbers.tolist()
        return Answer(int(step), int(pause_at), norm, tuple(votes))


class ParameterServer:
    """One process of such a run: a server or a worker, which both go through the same loop."""

    name = "parameter_server"
    has_own_optimisers = False
    period = 1
    is_in_step = False

    def __init__(self, group: Group, settings: schema.Exchange) -> None:
        self.group, self._settings = group, settings
        self.roles: Roles = share_roles(group.local_ranks(), settings.servers)
        self.role: Role = self.roles.of(group.rank)
        self._keepers = group.gather_json(group.folder_keeper)
        self._copies: dict[str, Tensor] = {}
        """Of optimisers on hosts that share no folder with this one: every host's checkpoint is whole."""
        self._end: _Worker | _Server | None = None

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
        line = _Line(self.group.channel(heart), flat, self._shards)
        servers = self.group.part([list(self.roles.servers), *([rank] for rank in self.roles.workers)], heart)
        if self.role == "server":
            shard = self._shards[self.group.rank]
            optimiser.keep(shard.start, shard.stop)
            self._end = _Server(line, servers, self.roles, self._settings)
        else:
            optimiser.keep(0, 0)
            self._end = _Worker(line, self.roles, self._settings, may_change)

    def turns(self, step: int, num_slots: int) -> Iterator[Turn]:
        if self._end is None:
            yield Turn(range(num_slots), range(num_slots))
        else:
            yield from self._end.turns(step, num_slots)

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def update(self, apply: Callable[[], None]) -> None:
        if self._end is None:
            apply()
        else:
            self._end.update(apply)

    def gradient_norm(self) -> float:
        """Of the whole gradient, to which other servers hold the other parts."""
        if isinstance(self._end, _Server):
            return self._end.norm
        return float(torch.linalg.vector_norm(self.flat.gradients))

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

    def optimiser_part(self) -> dict[str, Tensor] | None:
        return self._optimiser.state() | self._copies if self._end else None

    def shared_state(self) -> dict[str, Tensor]:
        return {}

    def own_state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The weights, and the optimiser's part that this process keeps, have been loaded before."""
        if self._end is not None:
            self._end.begin_anew()


class _Line:
    """Messages between workers and servers, and how many bytes went to whom."""

    def __init__(self, group: Group, flat: FlatParameters, shards: dict[int, slice]) -> None:
        self.group, self.flat, self.shards = group, flat, shards
        self._sent: Counter[int] = Counter()

    def send(self, *parts: Part) -> None:
        """Returns when all of it has been received."""
        self.swap(parts, ())

    def receive(self, *parts: Part) -> None:
        self.swap((), parts)

    def swap(self, sent: Iterable[Part], received: Iterable[Part]) -> None:
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


class _Worker:
    """Asks, pulls, computes and pushes."""

    def __init__(
        self, line: _Line, roles: Roles, settings: schema.Exchange, may_change: Callable[[], None]
    ) -> None:
        self._line, self._flat, self._roles, self._settings = line, line.flat, roles, settings
        self._may_change = may_change
        self._place = roles.workers.index(line.group.rank)
        self._local_step, self._base = 0, 0
        self._step, self._slots, self._share = 0, 0, 1.0
        self.begin_anew()

    def begin_anew(self) -> None:
        self._era, self._last_step = 0, 0
        self._answer: Answer | None = None

    def turns(self, step: int, num_slots: int) -> Iterator[Turn]:
        """This step, where it was given to this worker; nothing where others do it."""
        self._era = self._era or step
        if self._must_ask(step):
            self._answer = self._ask()
            if self._answer.step:
                self._pull(self._answer.step)
        assert self._answer is not None
        self._step = step
        if self._answer.step != step:
            self._show(step, loss=0.0)
            return
        whole, place, count = range(num_slots), self._place, len(self._roles.workers)
        mine = share_of(num_slots, place, count) if self._settings.synchronous else whole
        self._slots, self._share = len(mine), len(mine) / num_slots
        yield Turn(whole, mine)

    def _must_ask(self, step: int) -> bool:
        if self._answer is None or self._answer.step:
            return self._answer is None or step > self._answer.step
        return step > self._answer.pause_at

    def _ask(self) -> Answer:
        server, numbers = self._roles.servers[0], Answer(0, 0, 0.0).numbers()
        question = Message(Kind.ASK, self._era, self._last_step).numbers()
        self._line.swap([(server, _NUMBERS, question)], [(server, _ANSWER, numbers)])
        return Answer.of(numbers)

    def _pull(self, step: int) -> None:
        self._may_change()
        request = Message(Kind.PULL, self._era, step).numbers()
        bases = torch.zeros(len(self._roles.servers), dtype=torch.float64)
        answers: list[Part] = []
        for number, (server, shard) in enumerate(self._line.shards.items()):
            answers.append((server, _ANSWER, bases[number : number + 1]))
            answers.append((server, _WEIGHTS, self._flat.weights[shard]))
        self._line.swap([(server, _NUMBERS, request) for server in self._roles.servers], answers)
        self._base = int(bases.min())

    def update(self, _apply: Callable[[], None]) -> None:
        """Send the gradient; nobody is waited for. The servers apply it."""
        loss, *votes = self._flat.extras.tolist()
        push = Message(Kind.PUSH, self._era, self._step, self._base, self._slots, loss, tuple(votes))
        parts: list[Part] = []
        for server, shard in self._line.shards.items():
            parts += [(server, _NUMBERS, push.numbers()), (server, _GRADIENT, self._flat.gradients[shard])]
            if len(self._flat.statistics):
                parts.append((server, _STATISTICS, self._flat.statistics))
        self._line.send(*parts)
        self._local_step, self._last_step = self._local_step + 1, self._step
        # The loss of its own slots stands for that of all.
        self._show(self._step, loss / self._share if self._share else 0.0)

    def _show(self, step: int, loss: float) -> None:
        """What the loop reads: the loss, and the votes where this is the step after which they count."""
        assert self._answer is not None
        votes = self._answer.votes if self._answer.pause_at == step else (0.0,) * _NUM_VOTES
        self._flat.extras.copy_(torch.tensor((loss, *votes)))

    def settle(self) -> None:
        """Tell the servers that this worker sends nothing more before all have the same weights."""
        self._base = max(self._base, self._step)
        message = Message(Kind.SETTLE, self._era).numbers()
        self._line.send(*((server, _NUMBERS, message) for server in self._roles.servers))

    def facts(self) -> dict[str, Any]:
        assert self._answer is not None
        return {
            "local_step": self._local_step,
            "base_step": self._base,
            "staleness": self._step - 1 - self._base,
            "gradient_norm": round(self._answer.norm, 6),
            "sent_to": self._line.take_sent(),
        }


@dataclass(frozen=True)
class _Push:
    """What a worker has sent for a step."""

    message: Message
    gradient: Tensor
    """This server's part."""
    statistics: Tensor
    """Of BatchNorm, slot by slot; zeros in the slots of others."""


class _Server:
    """Keeps a part of the weights: adds up gradients, applies them in the order of their steps, answers workers."""

    def __init__(self, line: _Line, servers: Group, roles: Roles, settings: schema.Exchange) -> None:
        self._line, self._flat, self._servers = line, line.flat, servers
        self._workers, self._settings = roles.workers, settings
        self._shard = line.shards[line.group.rank]
        self._num_needed = max(1, len(roles.workers) - settings.backup_workers) if settings.synchronous else 1
        self.norm = 0.0
        """Of the gradient that is being applied, all servers' parts together."""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._era = 0
        self._global_step = self._granted = 0
        self._inbox: dict[int, dict[int, _Push]] = defaultdict(dict)
        """Gradients that have come, by step and by worker."""
        self._asking: dict[int, int] = {}
        self._pulling: dict[int, int] = {}
        self._settled: set[int] = set()
        self._votes: tuple[float, ...] | None = None
        """What is to be voted on after step `_pause_at`; None where there is nothing."""
        self._pause_at = 0
        self._told: set[int] = set()
        self._staleness: dict[str, int] = {}
        self._num_dropped = 0

    def turns(self, step: int, num_slots: int) -> Iterator[Turn]:
        """No slots: a server's part of a step is its update."""
        if self._era == 0:  # training begins, with whatever step that is
            self._era, self._global_step, self._granted = step, step - 1, step - 1
        self._num_slots = num_slots
        yield Turn(range(num_slots), range(0))

    def update(self, apply: Callable[[], None]) -> None:
        """Wait for the pushes that the next update needs, and apply it; meanwhile, and then, answer."""
        step, own_votes = self._global_step + 1, self._flat.extras[1:].tolist()
        self._forget_pause()
        while len(self._inbox[step]) < self._num_needed:
            self._handle_message()
        pushes = self._inbox.pop(step)
        messages = [push.message for push in pushes.values()]
        scale = self._num_slots / max(1, sum(message.slots for message in messages))
        gradient = self._flat.gradients[self._shard]
        for rank in sorted(pushes):
            gradient.add_(pushes[rank].gradient, alpha=scale)
            self._flat.statistics.add_(pushes[rank].statistics)
        loss = scale * sum(message.loss for message in messages)
        votes = [
            math.fsum(each) for each in zip(own_votes, *(message.votes for message in messages), strict=True)
        ]
        loss = self._agree(gradient, loss, votes)
        shown = self._votes if self._votes and step == self._pause_at else (0.0,) * _NUM_VOTES
        self._flat.extras.copy_(torch.tensor((loss, *shown)))
        self._staleness = {str(rank): step - 1 - push.message.base for rank, push in pushes.items()}
        apply()
        self._global_step = step
        self._answer_all()
        # Nobody may wait for an answer while this server does something else with the others.
        while self._servers.is_first and step == self._pause_at and len(self._told) < len(self._workers):
            self._handle_message()

    def _agree(self, gradient: Tensor, loss: float, votes: list[float]) -> float:
        """With the other servers: the norm, the loss, which step is followed by a vote. Returns the loss."""
        first = self._servers.is_first
        square = float(torch.linalg.vector_norm(gradient)) ** 2
        mine = (square, loss if first else 0.0, self._pause_at if first else 0, *votes)
        all_of_them = torch.tensor(mine, dtype=torch.float64)
        self._servers.all_reduce(all_of_them)
        square, loss, pause_at, *votes = all_of_them.tolist()
        self.norm = math.sqrt(square) if square >= 0 else math.nan
        if self._votes is not None:
            self._pause_at = int(pause_at)
        elif any(votes):
            self._votes = tuple(votes)
            if first:
                self._pause_at = max(self._granted, self._global_step + 1) + 1
        return loss

    def _forget_pause(self) -> None:
        if self._votes is not None and self._global_step == self._pause_at:
            self._votes, self._pause_at, self._told = None, 0, set()

    def _handle_message(self) -> None:
        numbers = Message(Kind.ASK).numbers()
        rank = self._line.group.receive_from_any(numbers, _NUMBERS)
        message = Message.of(numbers)
        match message.kind:
            case Kind.ASK:
                self._asking[rank] = message.step
            case Kind.PULL:
                self._pulling[rank] = message.step
            case Kind.PUSH:
                self._take_push(rank, message)
            case Kind.SETTLE:
                self._settled.add(rank)
        self._answer_all()

    def _take_push(self, rank: int, message: Message) -> None:
        """Keep a gradient, and what its slots have measured, for when the turn of its step comes."""
        gradient = torch.empty_like(self._flat.gradients[self._shard])
        statistics = torch.empty_like(self._flat.statistics)
        self._line.receive((rank, _GRADIENT, gradient))
        if len(statistics):
            self._line.receive((rank, _STATISTICS, statistics))
        if message.era == self._era and message.step > self._global_step:
            self._inbox[message.step][rank] = _Push(message, gradient, statistics)
        else:
            self._num_dropped += 1

    def _answer_all(self) -> None:
        """Answer those who can be answered by now."""
        for rank, last in sorted(self._asking.items()):
            step = self._next_step(last)
            if step is not None:
                del self._asking[rank]
                self._told |= {rank} if self._votes is not None else set()
                self._granted = max(self._granted, step)
                votes = self._votes or (0.0,) * _NUM_VOTES
                answer = Answer(step, self._pause_at, self.norm, votes)
                self._line.send((rank, _ANSWER, answer.numbers()))
        for rank, step in sorted(self._pulling.items()):
            if self._global_step >= step - 1 - self._most_stale:
                del self._pulling[rank]
                base = torch.tensor([self._global_step], dtype=torch.float64)
                self._line.send((rank, _ANSWER, base), (rank, _WEIGHTS, self._flat.weights[self._shard]))

    @property
    def _most_stale(self) -> int:
        return 0 if self._settings.synchronous else self._settings.staleness

    def _next_step(self, last: int) -> int | None:
        """The step for a worker whose last one was `last`; 0 for none before the vote, None for not yet."""
        if self._settings.synchronous:
            step = self._global_step + 1
            may_begin = self._global_step >= last
        else:
            step = self._granted + 1
            may_begin = self._granted - self._global_step <= self._settings.staleness
        if self._votes is not None and step > self._pause_at:
            return 0
        return step if may_begin else None

    def settle(self) -> None:
        """Serve until no worker wants anything any more."""
        while len(self._settled) < len(self._workers):
            self._handle_message()
        self._settled.clear()

    def facts(self) -> dict[str, Any]:
        return {
            "global_step": self._global_step,
            "staleness_of": self._staleness,
            "dropped": self._num_dropped,
            "sent_to": self._line.take_sent(),
        }
