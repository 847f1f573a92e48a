"""The decisions of agents: a few by hand, and those of whole simulated clusters that are badly treated."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.agent.actions import Events, FolderClaimed, RecordEvent
from echelon.agent.agent_state import first_state
from echelon.agent.decision import decide
from echelon.agent.ending import find_outcome
from echelon.agent.generation import Failure, Generation, Heartbeat
from echelon.agent.outcome import RunOutcome
from echelon.monitor.records import read_records
from tests.agent.simulation import KILLED, World


@contextmanager
def open_world(
    seed: int, num_hosts: int, *, is_shared: bool = True, max_restarts: int = 10_000
) -> Iterator[World]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        world = World(seed, num_hosts, Path(folder), is_shared=is_shared, max_restarts=max_restarts)
        try:
            yield world
        finally:
            world.close()


def wait_until(world: World, is_so: Callable[[], bool], patience_s: float) -> None:
    deadline = world.now + patience_s
    while not is_so():
        assert world.now < deadline, (
            f"seed {world.seed}, {world.num_hosts} hosts, {world.now:.1f} s: left {world.left}, "
            f"{[(agent.state.mine, agent.workers) for agent in world.agents.values()]}"
        )
        world.pass_time()


def live_through(seed: int, num_hosts: int, *, is_shared: bool) -> int:
    """A minute of harm; then all living hosts work together before long, and finish. Returns the most at work."""
    with open_world(seed, num_hosts, is_shared=is_shared) as world:
        next_harm = 5.0
        while world.now < 65.0:
            if world.now >= next_harm:
                world.do_harm()
                next_harm = world.now + world.random.uniform(0.2, 12.0)
            world.pass_time()
        world.end_harm()
        wait_until(world, world.is_one_generation, patience_s=300)
        world.may_finish = True
        wait_until(world, lambda: not world.agents, patience_s=30)
        assert {ended.outcome for ended in world.left.values()} == {"finished"}
        return world.most_at_work


def finish_in_the_middle_of_harm(seed: int, num_hosts: int, *, is_shared: bool) -> None:
    """The run may finish at any moment: whoever misses that leaves too, and nobody trains on."""
    with open_world(seed, num_hosts, is_shared=is_shared) as world:
        next_harm = 5.0
        world.steps = world.random.randint(20, 200)
        while world.now < 65.0:
            if world.now >= next_harm:
                world.do_harm()
                next_harm = world.now + world.random.uniform(0.2, 12.0)
            world.pass_time()
        world.end_harm()
        # An agent that was started after the end knows of nothing; its launcher ends it.
        wait_until(
            world,
            lambda: all(a.state.mine.generation is None for a in world.agents.values()) and bool(world.left),
            patience_s=300,
        )
        outcomes = {end.outcome for end in world.left.values()}
        assert "finished" in outcomes
        assert outcomes <= {"finished", "alone"}
        assert world.saved_for_sure == world.steps


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared folder", "own folders"])
@pytest.mark.parametrize("num_hosts", [3, 5, 7])
def test_whatever_happens_one_generation_trains_and_in_the_end_all_living_hosts_are_in_it(
    num_hosts: int, is_shared: bool
) -> None:
    assert max(live_through(seed, num_hosts, is_shared=is_shared) for seed in range(4)) == num_hosts


@pytest.mark.parametrize("is_shared", [True, False], ids=["shared folder", "own folders"])
def test_a_run_that_finishes_in_the_middle_of_harm_is_finished_for_all(is_shared: bool) -> None:
    for seed in range(6):
        finish_in_the_middle_of_harm(seed, 3, is_shared=is_shared)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared folder", "own folders"])
def test_if_the_leader_and_its_deputies_die_together_the_next_three_take_over(
    seed: int, is_shared: bool
) -> None:
    with open_world(seed, 9, is_shared=is_shared) as world:
        wait_until(world, world.is_one_generation, patience_s=60)
        assert {tuple(agent.state.hubs) for agent in world.agents.values()} == {(0, 1, 2)}
        for hub in (0, 1, 2):
            world.switch_off(hub)
        wait_until(world, lambda: 2 in world.generations and world.is_one_generation(), patience_s=20)
        generations = {workers.generation for _, workers in world.at_work()}
        assert [generation.leader for generation in generations] == [3]
        silent_and_new = tuple(range(6))
        assert {tuple(agent.state.hubs) for agent in world.agents.values()} == {silent_and_new}


def test_a_leader_that_is_no_hub_any_more_still_leads() -> None:
    with open_world(0, 7) as world:
        wait_until(world, world.is_one_generation, patience_s=60)
        for hub in (0, 1, 2):
            world.switch_off(hub)
        wait_until(world, lambda: 2 in world.generations and world.is_one_generation(), patience_s=20)
        for hub in (0, 1, 2):
            world.switch_on(hub)
        wait_until(world, lambda: world.is_one_generation() and len(world.at_work()) == 7, patience_s=60)
        assert {workers.generation.leader for _, workers in world.at_work()} == {3}
        assert {tuple(agent.state.hubs) for agent in world.agents.values()} == {(0, 1, 2, 3)}


def test_workers_of_hosts_that_are_left_are_kept_for_the_next_generation() -> None:
    with open_world(3, 3) as world:
        wait_until(world, world.is_one_generation, patience_s=60)
        wait_until(world, lambda: len(world.at_work()) == 3, patience_s=60)
        left = [workers for host, workers in world.at_work() if host != 2]
        world.switch_off(2)
        wait_until(world, lambda: len(world.at_work()) == 2, patience_s=60)
        wait_until(world, lambda: all(workers.end for workers in left), patience_s=60)
        assert all(workers.is_released for workers in left)


def test_a_worker_that_keeps_failing_ends_the_run_after_the_restarts_that_are_allowed() -> None:
    with open_world(0, 3, max_restarts=2) as world:
        while world.agents and world.now < 300:
            for _, workers in world.at_work():
                if workers.step > 0:
                    workers.end_at(world.now, KILLED)
            world.pass_time()
        reason = "killed by signal 9 after 2 restarts within 1.66667e+07 minutes"
        assert {(ended.outcome, ended.message) for ended in world.left.values()} == {("failed", reason)}
        assert world.generations == {1, 2, 3}


def test_a_stop_of_any_host_makes_all_save_and_leave() -> None:
    with open_world(0, 3) as world:
        wait_until(world, lambda: world.is_one_generation() and world.saved_for_sure > 0, patience_s=60)
        world.agents[2].stop = 1
        wait_until(world, lambda: not world.agents, patience_s=30)
        assert {ended.outcome for ended in world.left.values()} == {"interrupted"}
        assert world.generations == {1}


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_starts_is_told_of_once(seed: int) -> None:
    with open_world(seed, 4) as world:
        wait_until(world, world.is_one_generation, patience_s=60)
        assert count_arrivals(world) == {"host2": 1, "host3": 1, "host4": 1}
        world.switch_off(0)
        wait_until(world, lambda: world.generations == {1, 2} and world.is_one_generation(), patience_s=60)
        world.switch_on(0)
        wait_until(world, lambda: len(world.at_work()) == 4 and world.is_one_generation(), patience_s=60)
        assert count_arrivals(world) == {"host1": 1, "host2": 1, "host3": 1, "host4": 1}


def count_arrivals(world: World) -> Counter[str]:
    """How often each host was told to be here, by all agents together."""
    folder = world.run_folder(0)
    said = [
        record.get("message", "")
        for host in range(world.num_hosts)
        for record in read_records(folder.agent_records(host))
    ]
    return Counter(message.removesuffix(" is here") for message in said if message.endswith(" is here"))


def test_a_failure_counts_once_however_long_the_run_folder_cannot_be_claimed() -> None:
    with open_world(0, 1, max_restarts=3) as world:
        spec = world.agents[0].spec
    failed = Heartbeat(
        0,
        generation=Generation(1, 0, (0,), "running", 1),
        phase="failed",
        failure=Failure("boom", False, True),
    )
    state, told = replace(first_state(0, 0.0), mine=failed, trouble_since=-10.0), list[str]()
    for count in range(10):
        events = Events(answers=(FolderClaimed(None),) if count else ())
        state, actions = decide(state, events, 0.2 * count, spec)
        told += [action.message for action in actions if isinstance(action, RecordEvent)]
    assert find_outcome(state, 2.0, spec) is None
    assert told == ["boom", "restarting (1 of 3) with 1 worker from the newest checkpoint"]


def test_an_agent_that_waited_for_the_others_in_vain_does_not_say_that_the_run_has_failed() -> None:
    with open_world(0, 3) as world:
        spec = world.agents[0].spec
    mine = Heartbeat(0, generation=Generation(1, 1, (0, 1, 2), "running", 1))
    state = replace(first_state(0, 0.0), mine=mine, alive=(0,))
    assert find_outcome(state, 1800.0, spec) is None
    assert find_outcome(state, 1801.0, spec) == RunOutcome("alone", "too few hosts were left", spec.launch)


@pytest.mark.slow
@pytest.mark.parametrize("is_shared", [True, False], ids=["shared folder", "own folders"])
@pytest.mark.parametrize("num_hosts", [2, 3, 5, 7, 9])
def test_a_thousand_clusters_live_through_harm(num_hosts: int, is_shared: bool) -> None:
    for seed in range(100, 150):
        live_through(seed, num_hosts, is_shared=is_shared)
        finish_in_the_middle_of_harm(seed, num_hosts, is_shared=is_shared)
