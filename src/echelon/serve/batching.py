"""Dynamic batching: lines that arrive during one batch form the next."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from echelon.inference.decoding import Decoding, Translation
from echelon.inference.translator import Translator
from echelon.serve.deadline import QueueFullError
from echelon.serve.limits import Limits
from echelon.serve.metrics import Metrics

BATCH_LINES = 64
BATCH_WORK = 65_536
"""Of all lines together, as `work_of` counts it; a batch under way cannot be stopped, and everybody waits for it."""


@dataclass(frozen=True)
class Waiting:
    """One line, and who waits for it."""

    line: str
    prefix: str
    decoding: Decoding
    result: asyncio.Future[Translation] = field(hash=False)
    request: object = None
    """The request, if it draws with a seed: its lines are not batched with others, so that they are drawn the same."""
    client: str = ""
    """Who asked: clients take turns."""
    since: float = field(default_factory=time.monotonic)


class Batcher:
    """Translates lines of many requests together, in the order they came. Belongs to one event loop."""

    def __init__(self, translator: Translator, limits: Limits, metrics: Metrics) -> None:
        self._translator = translator
        self._limits = limits
        self._metrics = metrics
        self._waiting: deque[Waiting] = deque()
        self._has_work = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="translate")
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def start(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def stop(self) -> None:
        """End after the batch under way; what still waits is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for one in self._waiting:
            one.result.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    async def translate(
        self, lines: Sequence[str], decoding: Decoding, prefixes: Sequence[str], client: str = ""
    ) -> list[Translation]:
        """Wait for the lines' translations; QueueFullError if too many wait, of all clients or of this one. Cancelling
        withdraws the lines.
        """
        own = sum(one.client == client for one in self._waiting)
        if len(self._waiting) + len(lines) > self._limits.queue_lines:
            raise QueueFullError
        if own + len(lines) > self._limits.client_lines:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        request = None if decoding.seed is None else object()
        mine = [
            Waiting(line, prefix, decoding, loop.create_future(), request, client)
            for line, prefix in zip(lines, prefixes, strict=True)
        ]
        self._waiting.extend(mine)
        self._has_work.set()
        try:
            return list(await asyncio.gather(*(one.result for one in mine)))
        except (Exception, asyncio.CancelledError):
            for one in mine:
                one.result.cancel()
            self._waiting = deque(one for one in self._waiting if not one.result.done())
            raise

    async def _work(self) -> None:
        while True:
            await self._has_work.wait()
            batch = take_batch(self._waiting)
            if not self._waiting:
                self._has_work.clear()
            if batch:
                await self._compute(batch)

    async def _compute(self, batch: list[Waiting]) -> None:
        started = time.monotonic()
        for one in batch:
            self._metrics.wait_seconds.observe(started - one.since)
        self._metrics.batch_lines.observe(len(batch))
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self._translate, batch)
        except Exception as error:  # the waiting requests report it, and the next batch runs
            for one in batch:
                if not one.result.done():
                    one.result.set_exception(error)
            return
        self._metrics.compute_seconds.observe(time.monotonic() - started)
        for one, result in zip(batch, results, strict=True):
            if not one.result.done():
                one.result.set_result(result)

    def _translate(self, batch: list[Waiting]) -> list[Translation]:
        lines, prefixes = [one.line for one in batch], [one.prefix for one in batch]
        return self._translator.translate(lines, batch[0].decoding, prefixes=prefixes)


def work_of(line: str, prefix: str, decoding: Decoding) -> int:
    """How much a line may take to translate: hypotheses, times what each may be long."""
    is_sampling = decoding.temperature is not None
    hypotheses = decoding.n_best if is_sampling else decoding.beam
    return hypotheses * (max(len(line), decoding.max_length or 0) + len(prefix))


def take_batch(waiting: deque[Waiting]) -> list[Waiting]:
    """Take the first lines that go together, as many as a batch may have; withdrawn ones are dropped.

    What else the clients in it wait for then comes after what all others do.
    """
    batch: list[Waiting] = []
    others: deque[Waiting] = deque()
    work = 0
    while waiting and len(batch) < BATCH_LINES and work < BATCH_WORK:
        one = waiting.popleft()
        if one.result.done():
            continue
        if batch and (one.decoding, one.request) != (batch[0].decoding, batch[0].request):
            others.append(one)
            continue
        batch.append(one)
        work += work_of(one.line, one.prefix, one.decoding)
    waiting.extendleft(reversed(others))
    served = {one.client for one in batch}
    in_turn = sorted(waiting, key=lambda one: one.client in served)
    waiting.clear()
    waiting.extend(in_turn)
    return batch
