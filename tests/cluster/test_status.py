"""How a run on hosts stands by what they answer; and agents that missed its end."""

from __future__ import annotations

import secrets
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.agent.inquiry import HostAnswer
from echelon.agent.outcome import RunOutcome
from echelon.cluster.host_session import start_agents
from echelon.cluster.roster import write_roster
from echelon.cluster.status import ask_hosts, end_leftovers, judge_run
from echelon.errors import RemoteError
from echelon.monitor.run_state import RunState
from echelon.runfolder import RunFolder
from tests.agent.cluster import open_cluster
from tests.cluster.own_folders import end, make_folder, make_sessions, write_records

NOBODY = HostAnswer(
    is_running=False,
    trains=False,
    launch="",
    agents=[],
    last_outcome="",
    ends={},
    state=RunState("unknown", 0, None, 0.0),
    last_step=0,
    tensorboard_time=0.0,
)
TRAINS = replace(NOBODY, is_running=True, trains=True, launch="b", state=RunState("training", 32, 80, 50.0))
WAITS = replace(TRAINS, trains=False)
MISSED = replace(WAITS, launch="a")
"""Its agent is that of a launch that others know to be over."""
INTERRUPTED = replace(
    NOBODY,
    last_outcome="interrupted",
    ends={"a": "interrupted"},
    state=RunState("interrupted", 40, 80, 60.0),
)
FINISHED = replace(
    NOBODY, last_outcome="finished", ends={"a": "finished"}, state=RunState("finished", 80, 80, 90.0)
)
CUT_OFF = RemoteError("host", "unreachable", "it cannot be reached")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A launcher's folder, whose launcher died at step 13, with hosts that keep their own."""
    run = make_folder(tmp_path / "here")
    write_roster(run, make_sessions([run, run, run]), "here", None)
    write_records(run.worker_records(0), {"kind": "start", "step": 0, "steps": 80, "time": 10.0})
    write_records(run.worker_records(0), {"kind": "step", "step": 13, "time": 20.0})
    return run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.mark.parametrize(
    ("answers", "name", "step"),
    [
        ([TRAINS, NOBODY, NOBODY], "training", 32),
        ([CUT_OFF, TRAINS, WAITS], "training", 32),
        ([WAITS, WAITS, CUT_OFF], "waiting for hosts", 32),
        ([FINISHED, FINISHED, FINISHED], "finished", 80),
        ([FINISHED, NOBODY, CUT_OFF], "finished", 80),
        ([INTERRUPTED, INTERRUPTED, MISSED], "interrupted", 40),
        ([FINISHED, MISSED, MISSED], "finished", 80),
        ([INTERRUPTED, TRAINS, TRAINS], "training", 40),
        ([NOBODY, NOBODY, NOBODY], "interrupted", 13),
    ],
)
def test_a_run_stands_as_its_hosts_say(
    run: RunFolder, answers: list[HostAnswer | RemoteError], name: str, step: int
) -> None:
    state = judge_run(run, answers)
    assert (state.name, state.step, state.steps) == (name, step, 80)


@pytest.mark.parametrize(
    ("answers", "name"),
    [
        ([INTERRUPTED, INTERRUPTED, CUT_OFF], "interrupted"),
        ([NOBODY, NOBODY, NOBODY], "training"),
    ],
)
def test_a_lock_that_is_held_counts_until_the_agents_have_said_how_it_ended(
    run: RunFolder, answers: list[HostAnswer | RemoteError], name: str
) -> None:
    """By a launcher that starts them again, or by a host that shares the folder and is cut off."""
    with run.lock(with_others=True):
        assert judge_run(run, answers).name == name


def test_without_an_answer_it_is_as_of_when_something_last_came(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echelon.monitor.run_state.FRESH_S", 0.0)
    assert judge_run(run, [CUT_OFF, CUT_OFF, CUT_OFF]) == RunState("unknown", 13, 80, 20.0)


@pytest.fixture
def folders(tmp_path: Path) -> list[RunFolder]:
    return [make_folder(tmp_path / f"host{number}") for number in range(2)]


def test_an_agent_that_missed_the_end_is_ended_and_the_same_command_starts_anew(
    run: RunFolder, folders: list[RunFolder]
) -> None:
    """Of two hosts the second was cut off when the run was stopped, and is back."""
    sessions = make_sessions(folders)
    write_roster(run, sessions, "here", None)
    with open_cluster(folders, 2) as cluster:
        cluster.start(1)
        end(folders[0], 0, RunOutcome("interrupted", launch=cluster.spec.launch))
        assert end_leftovers(run) == ["localhost"]
        assert cluster.agent(1) is None
        again = replace(cluster.spec, secret=secrets.token_hex(32), run=str(folders[0].path))
        start_agents(sessions, [replace(again, host=n, run=str(f.path)) for n, f in enumerate(folders)])
        agents = [cluster.agent(0), cluster.agent(1)]
        assert None not in agents
        assert end_leftovers(run) == [], "those of a run that is going on are left alone"
        assert [cluster.agent(0), cluster.agent(1)] == agents
        for host in range(2):
            cluster.signal(host, signal.SIGKILL)


def test_a_run_folder_of_somebody_else_has_no_agents_ended(run: RunFolder) -> None:
    run.hosts.write_text(run.hosts.read_text() + " ")
    assert end_leftovers(run) == []


def test_a_host_that_cannot_be_asked_says_why(run: RunFolder) -> None:
    sessions = make_sessions([run])
    (answer,) = ask_hosts([replace(sessions[0], python=("false",))], run)
    assert isinstance(answer, RemoteError)
