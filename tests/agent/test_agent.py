"""Agents with workers that are a few lines of Python: who starts what, and what happens when something is lost."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from echelon.runfolder import RunFolder
from tests.agent.cluster import open_cluster

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
generation = int(os.environ["ECHELON_GENERATION"])
def leave(*_): sys.exit(75)
signal.signal(signal.SIGTERM, leave)
def note(what): (run / f"{what}-{generation}-{rank}").write_text(os.environ["WORLD_SIZE"])
note("begun")
"""
UNTIL_TOLD = """
while not (run / "done").exists(): time.sleep(0.05)
note("ended")
"""


def make_folder(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    folder.recipe.write_text("")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_folder(tmp_path / "run")


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], tuple[str, ...]]:
    def write(body: str) -> tuple[str, ...]:
        (tmp_path / "worker.py").write_text(PREAMBLE + textwrap.dedent(body))
        return (sys.executable, str(tmp_path / "worker.py"))

    return write


def begun(run: RunFolder, generation: int) -> list[str]:
    return sorted(path.name for path in run.path.glob(f"begun-{generation}-*"))


def has_begun(run: RunFolder, hosts: int) -> bool:
    """Whether a generation of so many hosts has begun on all of them, whatever its number: on a busy machine a host
    may be taken for lost."""
    files = [path for path in run.path.glob("begun-*") if path.read_text() == str(hosts)]
    return hosts in Counter(path.name.split("-")[1] for path in files).values()


def test_three_hosts_start_together_and_finish(
    run: RunFolder, program: Callable[[str], tuple[str, ...]]
) -> None:
    with open_cluster([run], 3, program=program(""), silence_s=3600.0) as cluster:
        cluster.start()
        cluster.wait()
    assert cluster.outcomes() == ["finished"] * 3
    assert begun(run, 1) == ["begun-1-0", "begun-1-1", "begun-1-2"]
    assert (run.path / "begun-1-2").read_text() == "3"


@pytest.mark.slow
def test_when_a_host_dies_the_others_go_on_and_when_it_comes_back_it_is_taken_in(
    run: RunFolder, program: Callable[[str], tuple[str, ...]]
) -> None:
    with open_cluster([run], 3, program=program(UNTIL_TOLD)) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(begun(run, 1)) == 3)
        cluster.signal(2, signal.SIGKILL)
        cluster.wait_until(lambda: len(begun(run, 2)) == 2)
        cluster.start(2)
        cluster.wait_until(lambda: len(begun(run, 3)) == 3)
        (run.path / "done").touch()
        cluster.wait()
    assert cluster.outcomes() == ["finished"] * 3


def test_the_host_that_leads_may_be_the_one_that_dies(
    run: RunFolder, program: Callable[[str], tuple[str, ...]]
) -> None:
    with open_cluster([run], 3, program=program(UNTIL_TOLD)) as cluster:
        cluster.start()
        cluster.wait_until(lambda: has_begun(run, 3))
        cluster.signal(0, signal.SIGKILL)
        cluster.wait_until(lambda: has_begun(run, 2))
        (run.path / "done").touch()
        cluster.wait()
    assert cluster.outcomes() == [None, "finished", "finished"]


@pytest.mark.slow
def test_a_host_that_was_frozen_wakes_up_to_a_new_generation(
    run: RunFolder, program: Callable[[str], tuple[str, ...]]
) -> None:
    with open_cluster([run], 3, program=program(UNTIL_TOLD)) as cluster:
        cluster.start()
        cluster.wait_until(lambda: len(begun(run, 1)) == 3)
        cluster.signal(0, signal.SIGSTOP)
        cluster.wait_until(lambda: len(begun(run, 2)) == 2)
        cluster.signal(0, signal.SIGCONT)
        cluster.wait_until(lambda: len(begun(run, 3)) == 3)
        (run.path / "done").touch()
        cluster.wait()
    assert cluster.outcomes() == ["finished"] * 3


def test_a_stop_on_any_host_makes_all_save_and_leave(
    run: RunFolder, program: Callable[[str], tuple[str, ...]]
) -> None:
    with open_cluster([run], 3, program=program(UNTIL_TOLD), silence_s=3600.0) as cluster:
        cluster.start()
        cluster.wait_until(lambda: has_begun(run, 3))
        agent = cluster.agent(2)
        assert agent is not None
        os.kill(agent, signal.SIGTERM)
        cluster.wait()
    assert cluster.outcomes() == ["interrupted"] * 3


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_host_that_misses_the_end_of_the_run_learns_of_it_when_it_is_back(
    tmp_path: Path, program: Callable[[str], tuple[str, ...]], is_shared: bool
) -> None:
    """Frozen, it hears as little as if it were cut off. In a shared folder it reads how the run has ended; with its own
    folder it finds that the others' machines answer, and have no agent any more."""
    folders = [make_folder(tmp_path / f"run{number}") for number in range(1 if is_shared else 3)]
    fewest = 1 if is_shared else 2
    with open_cluster(folders, 3, program=program(UNTIL_TOLD), fewest=fewest, silence_s=1.0) as cluster:
        cluster.start()
        cluster.wait_until(
            lambda: all(list(f.path.glob(f"begun-*-{n}")) for n, f in enumerate(cluster.folders))
        )
        cluster.signal(2, signal.SIGSTOP)
        agent = cluster.agent(0)
        assert agent is not None
        os.kill(agent, signal.SIGTERM)
        cluster.wait_until(lambda: cluster.agent(0) is None and cluster.agent(1) is None)
        generations = len(list(folders[-1].path.glob("begun-*")))
        cluster.signal(2, signal.SIGCONT)
        cluster.wait()
    assert cluster.outcomes() == ["interrupted", "interrupted", "interrupted" if is_shared else "alone"]
    assert len(list(folders[-1].path.glob("begun-*"))) == generations, "it goes on alone, after the end"


@pytest.mark.slow
def test_a_worker_that_keeps_failing_ends_the_run_with_its_own_words(
    run: RunFolder, program: Callable[[str], tuple[str, ...]]
) -> None:
    body = """
    if rank == 1:
        print("the disk is on fire"); sys.exit(1)
    time.sleep(600)
    """
    with open_cluster([run], 2, program=program(body), max_restarts=2) as cluster:
        cluster.start()
        cluster.wait()
    assert cluster.outcomes() == ["failed", "failed"]
    assert begun(run, 3)
    assert not begun(run, 4)
    assert any("the disk is on fire" in event for event in cluster.events())


@pytest.mark.slow
@pytest.mark.parametrize("leaver", [0, 2])
def test_a_host_that_must_go_saves_is_left_out_and_its_successor_taken_in(
    run: RunFolder,
    program: Callable[[str], tuple[str, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    leaver: int,
) -> None:
    with open_cluster([run], 3, program=program(UNTIL_TOLD)) as cluster:
        for host in range(3):
            monkeypatch.setenv("ECHELON_LEAVE_FILE", str(tmp_path / f"leaving-{host}"))
            cluster.start(host)
        cluster.wait_until(lambda: len(begun(run, 1)) == 3)
        (tmp_path / f"leaving-{leaver}").touch()
        cluster.wait_until(lambda: len(begun(run, 2)) == 2)
        assert any("about to be taken away" in event for event in cluster.events())
        assert not any("is lost" in event for event in cluster.events()), "all saved before it went"
        cluster.signal(leaver, signal.SIGKILL)
        monkeypatch.setenv("ECHELON_LEAVE_FILE", str(tmp_path / "successor"))
        cluster.start(leaver)
        cluster.wait_until(lambda: len(begun(run, 3)) == 3)
        (run.path / "done").touch()
        cluster.wait()
    assert cluster.outcomes() == ["finished"] * 3
