"""Training on hosts, of which this machine is the only one: real agents, without ssh."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from echelon.agent.service import find_agent
from echelon.commands import clusters
from echelon.commands.clusters import ClusterOptions
from echelon.commands.dry_run import plan_over_ssh
from echelon.commands.training import TrainOptions
from echelon.errors import UserError
from echelon.launch.hosts import Host, parse_hosts
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder
from tests.integration.runs import worker_processes


@pytest.mark.slow
def test_ctrl_c_while_the_agents_are_being_started_leaves_none_behind(
    toy_recipe: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    command = [sys.executable, "-m", "echelon", "train", str(toy_recipe), "--run", str(run.path)]
    with subprocess.Popen(
        [*command, "--hosts", "localhost:1", "--set", "train.steps=100000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not run.agent_lock(0).exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 1, said
    assert find_agent(run, 0) is None, said
    assert worker_processes(run) == []


def test_a_dry_run_puts_nothing_on_the_hosts_and_says_what_would_be(
    toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One host that is ready, and one that there is not."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a dry run changes nothing")

    for name in ("install_hosts", "sync_hosts", "send_image", "start_agents"):
        monkeypatch.setattr(clusters, name, refuse)
    run = tmp_path / "run"
    hosts = parse_hosts("localhost:1,no-such-host.invalid:2")
    cluster = ClusterOptions(hosts, install=True, sync=True)
    plan = plan_over_ssh(TrainOptions(toy_recipe, run, cluster=cluster), Console(quiet=True))
    ready, missing = plan.hosts
    install, sync, agent, worker = ready.commands
    assert install == "# --install: ~/.echelon/env, with what is installed here"
    assert sync.startswith("# --sync: ")
    assert agent == f"{sys.executable} -m echelon.agent start < orders"
    assert worker.startswith("RANK=0 LOCAL_RANK=0 WORLD_SIZE=3 ")
    assert missing.commands[2] == "'~/.echelon/env/bin/python' -m echelon.agent start < orders"
    assert "GLOO_SOCKET_IFNAME='(found when the host is ready)'" in missing.commands[3]
    assert not run.exists()


def test_workers_are_those_of_each_host_without_a_number_of_its_own() -> None:
    cluster = ClusterOptions([Host("alpha"), Host("beta", 4)])
    assert cluster.with_workers(parse_workers(2)).hosts == [Host("alpha", 2), Host("beta", 4)]
    assert cluster.with_workers(parse_workers("auto")) == cluster.with_workers(None) == cluster
    with pytest.raises(UserError, match="--workers 1:2: a host has a fixed number"):
        cluster.with_workers(parse_workers("1:2"))
    with pytest.raises(UserError, match="--workers 2: all hosts have their numbers"):
        ClusterOptions([Host("beta", 4)]).with_workers(parse_workers(2))
