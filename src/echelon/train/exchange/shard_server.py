"""The server's end of a run with parameter servers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe import schema
from echelon.train.exchange.mail import (
    ANSWER,
    GRADIENT,
    NUMBERS,
    STATISTICS,
    WEIGHTS,
    Grant,
    Kind,
    Mail,
    Message,
)
from echelon.train.exchange.roles import Roles
from echelon.train.slots import Update
from echelon.train.votes import NUM_VOTES


@dataclass(frozen=True)
class Push:
    """What a worker has sent for a step."""

    message: Message
    gradient: Tensor
    """This server's part."""
    statistics: Tensor
    """Of BatchNorm, slot by slot; zeros in the slots of others."""


class Server:
    """Keeps a part of the weights: adds up gradients, applies them in the order of their steps, answers workers."""

    def __init__(self, mail: Mail, servers: Group, roles: Roles, settings: schema.ExchangeSettings) -> None:
        self._mail, self._flat, self._servers = mail, mail.flat, servers
        self._workers, self._settings = roles.workers, settings
        self._shard = mail.shards[mail.group.rank]
        self._norm = 0.0
        """Of the gradient that is being applied, all servers' parts together."""
        self.begin_anew()

    def begin_anew(self) -> None:
        self._first_step = 0
        self._global_step = self._granted = 0
        self._inbox: dict[int, dict[int, Push]] = defaultdict(dict)
        """Gradients that have come, by step and by worker."""
        self._asking: dict[int, int] = {}
        self._pulling: dict[int, int] = {}
        self._settled: set[int] = set()
        self._votes: tuple[float, ...] | None = None
        """What is to be voted on after step `_pause_at`; None if there is nothing."""
        self._pause_at = 0
        self._told: set[int] = set()
        self._staleness: dict[str, int] = {}
        self._num_dropped = 0

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        """No slots: a server's part of a step is its update."""
        if self._first_step == 0:  # training begins, with whatever step that is
            self._first_step, self._global_step, self._granted = step, step - 1, step - 1
        self._num_slots = num_slots
        yield Update(range(num_slots), range(0))

    def reduce(self) -> float:
        """Wait for the pushes that the next update needs, and sum them; answer meanwhile."""
        step, own_votes = self._global_step + 1, self._flat.votes.tolist()
        self._forget_pause()
        while not self._is_enough(self._inbox[step]):
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
        shown = self._votes if self._votes and step == self._pause_at else (0.0,) * NUM_VOTES
        self._flat.show(loss, shown)
        self._staleness = {str(rank): step - 1 - push.message.base for rank, push in pushes.items()}
        return self._norm

    def after_update(self) -> None:
        """Answer all that have waited for this update."""
        self._global_step += 1
        self._answer_all()
        # Nobody may wait for an answer while this server does something else with the others.
        while self._is_pausing and len(self._told) < len(self._workers):
            self._handle_message()

    @property
    def _is_pausing(self) -> bool:
        return self._servers.is_first and self._global_step == self._pause_at

    def _is_enough(self, pushes: Mapping[int, Push]) -> bool:
        """Whether an update may be made of these; with backup workers, those count that have computed something."""
        if not self._settings.synchronous:
            return len(pushes) > 0
        num_workers, num_backup = len(self._workers), self._settings.backup_workers
        if not num_backup:
            return len(pushes) == num_workers
        num_useful = sum(push.message.slots > 0 for push in pushes.values())
        return num_useful >= max(1, min(num_workers, self._num_slots) - num_backup)

    def _agree(self, gradient: Tensor, loss: float, votes: list[float]) -> float:
        """With the other servers: the norm, the loss, which step is followed by a vote. Returns the loss."""
        first = self._servers.is_first
        square = float(torch.linalg.vector_norm(gradient)) ** 2
        mine = (square, loss if first else 0.0, self._pause_at if first else 0, *votes)
        all_of_them = torch.tensor(mine, dtype=torch.float64)
        self._servers.all_reduce(all_of_them)
        square, loss, pause_at, *votes = all_of_them.tolist()
        self._norm = math.sqrt(square) if square >= 0 else math.nan
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
        rank = self._mail.group.receive_from_any(numbers, NUMBERS)
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
        self._mail.receive((rank, GRADIENT, gradient))
        if len(statistics):
            self._mail.receive((rank, STATISTICS, statistics))
        if message.first_step == self._first_step and message.step > self._global_step:
            self._inbox[message.step][rank] = Push(message, gradient, statistics)
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
                votes = self._votes or (0.0,) * NUM_VOTES
                answer = Grant(step, self._pause_at, self._norm, votes)
                self._mail.send((rank, ANSWER, answer.numbers()))
        for rank, step in sorted(self._pulling.items()):
            if self._global_step >= step - 1 - self._most_stale:
                del self._pulling[rank]
                base = torch.tensor([self._global_step], dtype=torch.float64)
                self._mail.send((rank, ANSWER, base), (rank, WEIGHTS, self._flat.weights[self._shard]))

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
            "sent_to": self._mail.take_sent(),
        }
