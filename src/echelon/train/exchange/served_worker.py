"""The worker's end of a run with parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from echelon.recipe import schema
from echelon.recipe.workers import share_of
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
    TensorSpan,
)
from echelon.train.exchange.roles import Roles
from echelon.train.slots import Update
from echelon.train.votes import NUM_VOTES


class ServedWorker:
    """Asks, pulls, computes and pushes."""

    def __init__(
        self, mail: Mail, roles: Roles, settings: schema.ExchangeSettings, may_change: Callable[[], None]
    ) -> None:
        self._mail, self._flat, self._roles, self._settings = mail, mail.flat, roles, settings
        self._may_change = may_change
        self._place = roles.workers.index(mail.group.rank)
        self._local_step, self._base = 0, 0
        self._step, self._slots, self._share = 0, 0, 1.0
        self.begin_anew()

    def begin_anew(self) -> None:
        self._first_step, self._last_step = 0, 0
        self._answer: Grant | None = None

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        """This step if it was given to this worker; nothing if others do it."""
        self._first_step = self._first_step or step
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
        yield Update(whole, mine, is_applied_here=False)

    def _must_ask(self, step: int) -> bool:
        if self._answer is None or self._answer.step:
            return self._answer is None or step > self._answer.step
        return step > self._answer.pause_at

    def _ask(self) -> Grant:
        server, numbers = self._roles.servers[0], Grant(0, 0, 0.0).numbers()
        question = Message(Kind.ASK, self._first_step, self._last_step).numbers()
        self._mail.swap([(server, NUMBERS, question)], [(server, ANSWER, numbers)])
        return Grant.of(numbers)

    def _pull(self, step: int) -> None:
        self._may_change()
        request = Message(Kind.PULL, self._first_step, step).numbers()
        bases = torch.zeros(len(self._roles.servers), dtype=torch.float64)
        answers: list[TensorSpan] = []
        for number, (server, shard) in enumerate(self._mail.shards.items()):
            answers.append((server, ANSWER, bases[number : number + 1]))
            answers.append((server, WEIGHTS, self._flat.weights[shard]))
        self._mail.swap([(server, NUMBERS, request) for server in self._roles.servers], answers)
        self._base = int(bases.min())

    def reduce(self) -> float | None:
        """Send the gradient; nobody is waited for. The servers apply it."""
        loss, votes = self._flat.loss, self._flat.votes.tolist()
        push = Message(Kind.PUSH, self._first_step, self._step, self._base, self._slots, loss, tuple(votes))
        parts: list[TensorSpan] = []
        for server, shard in self._mail.shards.items():
            parts += [(server, NUMBERS, push.numbers()), (server, GRADIENT, self._flat.gradients[shard])]
            if len(self._flat.statistics):
                parts.append((server, STATISTICS, self._flat.statistics))
        self._mail.send(*parts)
        self._local_step, self._last_step = self._local_step + 1, self._step
        # The loss of its own slots stands for that of all.
        self._show(self._step, loss / self._share if self._share else 0.0)
        return None

    def after_update(self) -> None:
        """Nothing to do: the servers have updated the weights."""

    def _show(self, step: int, loss: float) -> None:
        """What the loop reads: the loss, and the votes if this is the step after which they count."""
        assert self._answer is not None
        votes = self._answer.votes if self._answer.pause_at == step else (0.0,) * NUM_VOTES
        self._flat.show(loss, votes)

    def settle(self) -> None:
        """Tell the servers that this worker sends nothing more before all have the same weights."""
        self._base = max(self._base, self._step)
        message = Message(Kind.SETTLE, self._first_step).numbers()
        self._mail.send(*((server, NUMBERS, message) for server in self._roles.servers))

    def facts(self) -> dict[str, Any]:
        assert self._answer is not None
        return {
            "local_step": self._local_step,
            "base_step": self._base,
            "staleness": self._step - 1 - self._base,
            "gradient_norm": round(self._answer.norm, 6),
            "sent_to": self._mail.take_sent(),
        }
