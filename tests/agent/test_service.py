"""How an agent comes to life, or says why it cannot."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.agent import service
from echelon.agent.service import _hold, find_agent
from echelon.agent.spec import AgentSpec, HostSpec, dump_spec
from echelon.agent.wire import SECRET_BYTES
from echelon.errors import RunError
from echelon.launch.ray_actor import LIFELINE_VARIABLE
from echelon.runfolder import RunFolder, parse_json
from tests.agent.cluster import open_cluster
from tests.waiting import NEVER_S, wait_until


def start(spec: AgentSpec) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "echelon.agent", "start"]
    return subprocess.run(command, input=dump_spec(spec), capture_output=True, check=False)


def test_whatever_keeps_an_agent_from_starting_is_what_its_launcher_hears(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.mkdir()
    with open_cluster([run], 1) as cluster:
        spec = replace(cluster.spec, run=str(run.path), files={"recipe.toml": ""})
        answer = start(spec)
    assert answer.returncode == 1
    assert "Is a directory" in parse_json(answer.stdout)["error"]


def test_somebody_who_only_looks_does_not_keep_an_agent_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOOK_S", 3600.0)
    lock = tmp_path / "agent-0.lock"
    looking = os.open(lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(looking, fcntl.LOCK_EX)
    threading.Timer(0.1, os.close, [looking]).start()
    with _hold(lock, "a"):
        monkeypatch.setattr(service, "LOOK_S", 0.0)
        with pytest.raises(RunError, match="at work already"), _hold(lock, "a"):
            pass


def test_the_same_hosts_in_another_order_are_refused_while_the_run_goes_on(tmp_path: Path) -> None:
    """This machine is host 1 of the run that goes on, and would be host 0 of the new launch."""
    run = RunFolder(tmp_path / "run")
    run.create()
    with open_cluster([run], 1) as cluster, _hold(run.agent_lock(1), "another"):
        answer = start(replace(cluster.spec, run=str(run.path), files={"recipe.toml": ""}))
    assert answer.returncode == RunError.exit_status
    assert "at work already" in parse_json(answer.stdout)["error"]
    assert not run.recipe.exists()


def test_an_agent_is_found_while_it_holds_its_lock(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert find_agent(run, 0) is None
    with _hold(run.agent_lock(0), "a"):
        assert find_agent(run, 0) == os.getpid()
    assert find_agent(run, 0) is None


def test_an_agent_ends_at_once_with_the_lifeline_that_it_was_given(tmp_path: Path) -> None:
    """It waits for a second host that never comes, until whoever has started it has gone."""
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.write_text("")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    hosts = tuple(HostSpec(name, "127.0.0.1", "lo", 1) for name in ("a", "b"))
    spec = AgentSpec(
        run=str(run.path),
        host=0,
        hosts=hosts,
        shares_folder=False,
        fewest=2,
        most=2,
        silence_s=NEVER_S,
        hang_s=NEVER_S,
        port=port,
        secret="5a" * SECRET_BYTES,
    )
    lifeline, held = os.pipe()
    answer = subprocess.run(
        [sys.executable, "-m", "echelon.agent", "start"],
        input=dump_spec(spec),
        capture_output=True,
        check=False,
        env={**os.environ, LIFELINE_VARIABLE: str(lifeline)},
        pass_fds=[lifeline],
    )
    os.close(lifeline)
    assert "pid" in parse_json(answer.stdout)
    assert find_agent(run, 0) == parse_json(answer.stdout)["pid"]
    os.close(held)
    wait_until(lambda: find_agent(run, 0) is None)
