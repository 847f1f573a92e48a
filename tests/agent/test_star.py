"""Fixed groups: agents on real connections, whose workers are a few lines of Python."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from echelon.agent.agent import Agent
from echelon.agent.connection import Connection
from echelon.agent.execution import HostExecutor
from echelon.agent.generation import KILLED
from echelon.agent.outcome import RunOutcome
from echelon.agent.spec import AgentSpec, HostSpec
from echelon.agent.star import Star
from echelon.launch.stop_requests import StopRequests
from echelon.runfolder import RunFolder
from tests.launch.conftest import Program
from tests.waiting import NEVER_S, wait_until

UNTIL_TOLD = """
signal.signal(signal.SIGTERM, save_and_leave)
started()
while not (run / "done").exists(): time.sleep(0.02)
"""


class Group:
    """Processes of a fixed group, each an agent in a thread; process 0 is connected with each of the others."""

    def __init__(self, run: RunFolder, pool: ThreadPoolExecutor, program: list[str], size: int) -> None:
        self.run, self.stops = run, [StopRequests() for _ in range(size)]
        self.connections: list[dict[int, Connection]] = [{} for _ in range(size)]
        for rank in range(1, size):
            first, other = map(Connection, connected_pair())
            first.begin(b"a" * 32, b"b" * 32)
            other.begin(b"b" * 32, b"a" * 32)
            for connection in (first, other):
                connection.allow_long_messages()
            self.connections[0][rank], self.connections[rank][0] = first, other
        self.spec = AgentSpec(
            run=str(run.path),
            host=0,
            hosts=tuple(HostSpec(f"process {n} on host{n}", "127.0.0.1", "lo", 1) for n in range(size)),
            shares_folder=True,
            fewest=size,
            most=size,
            silence_s=NEVER_S,
            hang_s=0.0,
            max_restarts=0,
            window_s=0.0,
            program=tuple(program),
            is_fixed=True,
        )
        self._pool = pool

    def start(self, *ranks: int, **changes: object) -> list[Future[RunOutcome]]:
        return [self._pool.submit(self._run, rank, changes) for rank in ranks or range(len(self.stops))]

    def _run(self, rank: int, changes: dict[str, object]) -> RunOutcome:
        spec = replace(self.spec, host=rank, **changes)  # type: ignore[arg-type]
        executor = HostExecutor(spec, self.run, None, lambda _: None)
        agent = Agent(spec, executor, Star(spec, self.connections[rank]), self.stops[rank])
        return asyncio.run(agent.run())

    def wait_for_workers(self) -> None:
        wait_until(lambda: len(list(self.run.path.glob("pid-*"))) == len(self.stops))

    def close(self) -> None:
        for connections in self.connections:
            for connection in connections.values():
                connection.release()


def connected_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        return server.accept()[0], caller


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def group(run: RunFolder, program: Program, pool: ThreadPoolExecutor) -> Iterator[Group]:
    group = Group(run, pool, program(UNTIL_TOLD), 3)
    yield group
    for stops in group.stops:
        stops.insist()
    group.close()


def outcomes(futures: list[Future[RunOutcome]]) -> set[tuple[str, str]]:
    return {(ended.outcome, ended.message) for ended in (future.result() for future in futures)}


def test_all_train_together_and_finish(group: Group) -> None:
    futures = group.start()
    group.wait_for_workers()
    (group.run.path / "done").touch()
    assert outcomes(futures) == {("finished", "")}


def test_a_stop_of_any_process_makes_all_save_and_leave(group: Group) -> None:
    futures = group.start()
    group.wait_for_workers()
    group.stops[2].ask()
    assert outcomes(futures) == {("interrupted", "")}
    assert [group.run.worker_log(rank).read_text() for rank in range(3)] == ["saved\n"] * 3


def test_a_second_stop_kills_all(group: Group) -> None:
    futures = group.start()
    group.wait_for_workers()
    group.stops[1].insist()
    assert outcomes(futures) == {("failed", KILLED)}


def test_a_process_that_has_gone_ends_all_with_its_name(group: Group) -> None:
    """Its agent never begins, and its connection ends."""
    futures = group.start(0, 1)
    group.connections[2][0].release()
    assert futures[0].result().message == "process 2 on host2 has gone without a word"
    group.connections[0][1].release()  # process 0 has left
    assert futures[1].result().message == "process 0 on host0 has gone without a word"


def test_a_process_that_is_lost_while_all_train_ends_all_with_its_name(group: Group) -> None:
    futures = group.start()
    group.wait_for_workers()
    group.connections[2][0].close()
    assert outcomes(futures[:2]) == {("failed", "process 2 on host2 has gone without a word")}
    assert futures[2].result().outcome == "failed"


def test_a_process_that_is_silent_ends_all_with_its_name(group: Group) -> None:
    (future,) = group.start(0, silence_s=1.0)
    message = r"process 1 on host1 has been silent for \d+ seconds, without a word"
    assert re.fullmatch(message, future.result().message)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(("status", "is_final"), [(1, False), (2, True)])
def test_a_worker_that_fails_ends_all_with_its_words(
    run: RunFolder, program: Program, pool: ThreadPoolExecutor, status: int, is_final: bool
) -> None:
    body = f"""
    started()
    if rank == 1:
        print("the disk is on fire", flush=True)
        sys.exit({status})
    time.sleep(600)
    """
    group = Group(run, pool, program(body), 3)
    futures = group.start()
    (told,) = outcomes(futures)
    assert told[0] == "failed"
    assert f"failed (exit code {status}); its log is {run.worker_log(1)}\n  the disk is on fire" in told[1]
    assert {future.result().is_final for future in futures} == {is_final}
    group.close()


HANGS = """
from echelon.monitor.heartbeat import open_heart
heart = open_heart()
started()
heart.beat(7)
if rank == 1:
    while not (run / "others-wait").exists(): time.sleep(0.02)
    with heart.waiting(): (run / "waits").write_text("")  # one collective behind the others, in which it waits too
    with heart.waiting(): time.sleep(600)
for _ in range(2):
    with heart.waiting(): pass
(run / "others-wait").write_text("")
with heart.waiting(): time.sleep(600)
"""


@pytest.mark.usefixtures("short_grace")
def test_a_worker_that_all_wait_for_is_found_wherever_it_is(
    run: RunFolder, program: Program, pool: ThreadPoolExecutor
) -> None:
    """All wait in a collective, as far as each host can see; the one that is behind holds the others up."""
    group = Group(run, pool, program(HANGS), 3)
    (told,) = outcomes(group.start(hang_s=1.0))
    assert told[0] == "failed"
    assert told[1].startswith("worker 1 on ")
    assert "no progress for " in told[1]
    group.close()
