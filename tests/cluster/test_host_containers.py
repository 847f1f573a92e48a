"""What is run on a host that trains in a container; and containers that come and go, in a docker that is a script."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from echelon.agent.service import _hold
from echelon.agent.spec import HostSpec
from echelon.cluster.host_containers import (
    find_containers,
    host_containers,
    render_host_container,
    start_container,
)
from echelon.cluster.host_session import HostSession
from echelon.cluster.host_watch import HostWatch
from echelon.cluster.result_transfer import fetch_results
from echelon.errors import RunError, TrainingError
from echelon.launch.container import DockerHost, container_name
from echelon.launch.ssh import Remote
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder
from tests.agent.cluster import open_cluster
from tests.cluster.test_result_transfer import make_run
from tests.waiting import wait_until

FAKE_DOCKER = """\
#!/bin/sh
verb=$1
shift
case "$verb" in
version)
    echo docker=28.0 ;;
run)
    [ "$2" = --detach ] || { until [ "$1" = echelon:1 ]; do shift; done; shift; exec PYTHON "$@"; }
    for word; do
        case "$word" in --name=*) name=${word#--name=} ;; esac
    done
    mkdir "FOLDER/$name" || { echo "Conflict. The container name \\"/$name\\" is already in use" >&2; exit 125; }
    echo "$name" ;;
exec)  # exec --interactive NAME python3 ...
    [ -d "FOLDER/$2" ] || { echo "Error response from daemon: No such container: $2" >&2; exit 1; }
    shift 3
    exec PYTHON "$@" ;;
kill)
    rmdir "FOLDER/$1" ;;
esac
"""
"""A container is a folder, and what runs in it a process like any other."""


@pytest.fixture
def containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the containers that there are."""
    containers, bin_ = tmp_path / "containers", tmp_path / "bin"
    containers.mkdir()
    bin_.mkdir()
    script = FAKE_DOCKER.replace("FOLDER", str(containers)).replace("PYTHON", sys.executable)
    (bin_ / "docker").write_text(script)
    (bin_ / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    return containers


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create()
    return run


def session_here(number: int) -> HostSession:
    spec = HostSpec(f"host{number}", "127.0.0.1", "lo", 1)
    return HostSession(number, Remote("localhost"), (), spec, sees_our_folder=False)


def names(containers: Path) -> set[str]:
    return {path.name for path in containers.iterdir()}


def test_a_hosts_container_is_started_with_exactly_this() -> None:
    session = HostSession(
        1, Remote("gpu2"), (), HostSpec("gpu2", "10.0.0.2", "eth0", 4), sees_our_folder=False
    )
    host = DockerHost(uid=1000, gid=100, gpus=4, folders=frozenset([Path("/run/echelon")]))
    run, data = Path("/home/ann/runs/base"), Path("/home/ann/cache/prepared/abc")
    assert render_host_container("echelon:1", session, run, data, host) == [
        *("docker", "run", "--rm", "--detach", "--init", "--pull=never"),
        f"--name={container_name(run, 1)}",
        "--network=host",
        "--ipc=host",
        *("--ulimit=memlock=-1", "--ulimit=stack=67108864"),
        "--user=1000:100",
        "--gpus=all",
        f"--mount=type=bind,source={run},target={run}",
        f"--mount=type=bind,source={data},target={data}",
        "--mount=type=bind,source=/run/echelon,target=/run/echelon,readonly",
        "--env=HOME=/tmp",
        "--env=SSH_CONNECTION",
        "--entrypoint=python3",
        "echelon:1",
        *("-m", "echelon.agent", "stay", str(run), "1"),
    ]


def test_a_container_is_there_while_it_is_needed(containers: Path, run: RunFolder, tmp_path: Path) -> None:
    with host_containers("echelon:1", [session_here(0), session_here(1)], run.path, tmp_path) as sessions:
        assert [session.number for session in sessions] == [0, 1]
        assert names(containers) == {container_name(run.path, 0), container_name(run.path, 1)}
        assert sessions[1].run_agent("ask", str(run.path), "1")["is_running"] is False
    assert names(containers) == set()


def test_the_containers_of_the_run_that_is_going_on_are_left_alone(
    containers: Path, run: RunFolder, tmp_path: Path
) -> None:
    """Of two hosts one is at work in its container, and the other has lost its own."""
    at_work = container_name(run.path, 0)
    (containers / at_work).mkdir()
    with (
        _hold(run.agent_lock(0), "a"),
        pytest.raises(RunError, match=r"host0: .*`echelon attach .*run` follows it"),
        host_containers("echelon:1", [session_here(0), session_here(1)], run.path, tmp_path),
    ):
        pass
    assert names(containers) == {at_work}


def test_a_container_that_no_agent_came_to_makes_way(
    containers: Path, run: RunFolder, tmp_path: Path
) -> None:
    (containers / container_name(run.path, 0)).mkdir()
    with host_containers("echelon:1", [session_here(0)], run.path, tmp_path) as (session,):
        assert session.run_agent("ask", str(run.path), "0")["is_running"] is False
    assert names(containers) == set()


def test_a_host_whose_container_has_gone_gets_another_and_an_agent_in_it(
    containers: Path, run: RunFolder, tmp_path: Path
) -> None:
    run.recipe.write_text("")
    told: list[str] = []
    with (
        open_cluster([run], 2) as cluster,
        host_containers("echelon:1", [session_here(0)], run.path, tmp_path) as (session,),
    ):
        (containers / container_name(run.path, 0)).rmdir()
        spec = replace(cluster.spec, run=str(run.path))
        again = partial(start_container, "echelon:1", session, run.path, tmp_path)
        watch = HostWatch(session, spec, run, told.append, start_container=again)
        wait_until(lambda: told)
        agent = cluster.agent(0)
        session.run_agent("stop", str(run.path), "0", "--now")
        watch.close()
    assert told == ["host0: its agent had ended and was restarted"]
    assert agent is not None


def test_how_a_run_ended_is_heard_although_its_container_ended_first(
    containers: Path, run: RunFolder, tmp_path: Path
) -> None:
    records = RecordWriter(run.agent_records(0))
    records.write("outcome", outcome="finished", message="")
    records.close()
    with host_containers("echelon:1", [session_here(0)], run.path, tmp_path) as (session,):
        (containers / container_name(run.path, 0)).rmdir()
        again = partial(start_container, "echelon:1", session, run.path, tmp_path)
        watch = HostWatch(session, None, run, lambda _: None, start_container=again)
        wait_until(lambda: watch.outcome)
        watch.close()
    assert watch.outcome == "finished"


def test_the_result_comes_home_although_the_containers_have_ended(containers: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "there", best=10)
    with host_containers("echelon:1", [session_here(0)], run.path, tmp_path) as sessions:
        (containers / container_name(run.path, 0)).rmdir()
        with pytest.raises(TrainingError, match="could not be brought here"):
            fetch_results(sessions, run)
        assert fetch_results(find_containers(sessions, run.path, "echelon:1"), run) == "host0"
