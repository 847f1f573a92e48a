"""Which of the waiting lines are computed together, and whose come first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest

from echelon.inference.decoding import Decoding
from echelon.inference.translator import Translator
from echelon.serve.batching import BATCH_LINES, BATCH_WORK, Batcher, Waiting, take_batch, work_of
from echelon.serve.deadline import QueueFullError
from echelon.serve.limits import Limits
from echelon.serve.metrics import Metrics
from tests.serve.conftest import MakeClient

CHEAP = Decoding()
DEAR = Decoding(temperature=1.0, n_best=16, min_length=256, max_length=1024)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def lines(loop: asyncio.AbstractEventLoop, count: int, decoding: Decoding, client: str) -> list[Waiting]:
    return [Waiting("a line", "", decoding, loop.create_future(), client=client) for _ in range(count)]


def clients(waiting: deque[Waiting] | list[Waiting]) -> list[str]:
    return list(dict.fromkeys(one.client for one in waiting))


def test_cheap_lines_are_computed_together(loop: asyncio.AbstractEventLoop) -> None:
    waiting = deque(lines(loop, 2 * BATCH_LINES, CHEAP, "one"))
    assert len(take_batch(waiting)) == BATCH_LINES


def test_lines_that_take_long_are_computed_few_at_a_time(loop: asyncio.AbstractEventLoop) -> None:
    """A batch of 64 such lines kept a small model busy for minutes, after their client had gone."""
    waiting = deque(lines(loop, 64, DEAR, "one"))
    assert len(take_batch(waiting)) == BATCH_WORK // work_of("a line", "", DEAR) == 4


@pytest.mark.parametrize(
    ("line", "prefix", "decoding"),
    [
        ("x" * 1024, "", Decoding(beam=16)),
        ("x", "y" * 1023, Decoding(beam=16)),
        ("x", "", Decoding(beam=16, max_length=1024)),
        ("x", "", Decoding(temperature=1.0, n_best=16, max_length=1024)),
    ],
)
def test_everything_that_takes_time_counts(line: str, prefix: str, decoding: Decoding) -> None:
    assert work_of(line, prefix, decoding) == 16 * 1024


def test_clients_take_turns(loop: asyncio.AbstractEventLoop) -> None:
    waiting = deque(
        [*lines(loop, 100, DEAR, "greedy"), *lines(loop, 1, CHEAP, "one"), *lines(loop, 1, DEAR, "two")]
    )
    taken = [clients(take_batch(waiting)) for _ in range(4)]
    assert taken == [["greedy"], ["one"], ["two", "greedy"], ["greedy"]]


def test_lines_of_a_client_stay_in_order(loop: asyncio.AbstractEventLoop) -> None:
    mine = lines(loop, 100, DEAR, "one")
    waiting = deque(mine)
    assert [one for _ in range(25) for one in take_batch(waiting)] == mine


def test_one_client_does_not_fill_the_queue(translator: Translator) -> None:
    async def play() -> None:
        batcher = Batcher(translator, Limits(queue_lines=100, client_lines=50), Metrics())
        wanted = ["one"] * 50, CHEAP, [""] * 50
        waits = [asyncio.create_task(batcher.translate(*wanted, client)) for client in ("greedy", "another")]
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await batcher.translate(["one"], CHEAP, [""], "greedy")
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        await batcher.stop()

    asyncio.run(play())


def test_a_line_that_is_too_much_by_itself_is_refused(make_client: MakeClient) -> None:
    client = make_client()
    wanted = {"text": "a" * 5000, "beam": 16}
    answer = client.post("/v1/translate", json=wanted)
    assert answer.status_code == 413
    assert "1.2 times the most" in answer.json()["error"]
