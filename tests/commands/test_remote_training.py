"""Training on hosts, of which this machine is the only one: real agents, without ssh."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console

from echelon.agent.service import find_agent
from echelon.commands import remote_training, rented_hosts
from echelon.commands.cluster_options import ClusterOptions
from echelon.commands.dry_run import plan_over_ssh
from echelon.commands.remote_training import RunHosts
from echelon.commands.rented_hosts import Rented
from echelon.commands.training import TrainOptions
from echelon.data.batch_plan import AnyPrepared
from echelon.errors import UserError
from echelon.launch.check import HostReport
from echelon.launch.hosts import Host, parse_hosts
from echelon.launch.ssh import Remote
from echelon.launch.sync import ShowProgress
from echelon.monitor.bar import working
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder
from tests.integration.runs import worker_processes
from tests.sample_recipe import sample_recipe


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
        monkeypatch.setattr(remote_training, name, refuse)
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


def test_data_are_copied_by_a_container_that_has_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host that was checked, and on a machine that has taken the place of another."""
    data, used = tmp_path / "cache" / "abc", list[object]()
    data.mkdir(parents=True)

    def sync(
        *_: object, pythons: dict[str, list[str]], progress: ShowProgress = lambda *_: None
    ) -> dict[str, object]:
        used.append(pythons)
        progress("a", 1, 2)
        return {}

    def python_with(remote: Remote, image: str, folder: Path) -> list[str]:
        return [remote.host, image, str(folder)]

    @contextmanager
    def open_remotes(_: str, names: list[str]) -> Iterator[list[Remote]]:
        yield [Remote(name) for name in names]

    for module in (remote_training, rented_hosts):
        monkeypatch.setattr(module, "sync_hosts", sync)
        monkeypatch.setattr(module, "python_with", python_with)
    for name in ("wait_for_answer", "require_end", "install", "_run_script"):
        monkeypatch.setattr(rented_hosts, name, lambda *_: None)
    monkeypatch.setattr(rented_hosts, "_open", open_remotes)
    options = ClusterOptions([Host("local")], container="trainer", sync=True)
    remotes = {"local": Remote("local")}
    prepared = cast(AnyPrepared, SimpleNamespace(folder=data))
    hosts = RunHosts(options, RunFolder(tmp_path / "run"), sample_recipe(), prepared, remotes)
    hosts._send_data([HostReport(Host("local"))], Console(quiet=True))
    rented = Rented.__new__(Rented)
    spec = SimpleNamespace(name="wmt", container="trainer", shared=False)
    rented.__dict__.update(
        _cluster=SimpleNamespace(spec=spec),
        _run=tmp_path / "run",
        _data=data,
        _tell=print,
        _unready={"local"},
    )
    rented._set_up("local")
    assert used == [{"local": ["local", "trainer", str(data.parent)]}] * 2


def test_workers_are_those_of_each_host_without_a_number_of_its_own() -> None:
    cluster = ClusterOptions([Host("alpha"), Host("beta", 4)])
    assert cluster.with_workers(parse_workers(2)).hosts == [Host("alpha", 2), Host("beta", 4)]
    assert cluster.with_workers(parse_workers("auto")) == cluster.with_workers(None) == cluster
    with pytest.raises(UserError, match="--workers 1:2: a host has a fixed number"):
        cluster.with_workers(parse_workers("1:2"))
    with pytest.raises(UserError, match="--workers 2: all hosts have their numbers"):
        ClusterOptions([Host("beta", 4)]).with_workers(parse_workers(2))


def test_the_stages_of_an_installation_are_shown() -> None:
    out = io.StringIO()
    with working(Console(file=out), "installing Echelon on the hosts") as show:
        for line in ("installing torch ...", "  Collecting torch ...", "  done", "installing Echelon ..."):
            remote_training._show_stage(show, "alpha", line)
    assert out.getvalue().splitlines() == [
        "installing Echelon on the hosts ...",
        "installing Echelon on the hosts: alpha: installing torch ...",
        "installing Echelon on the hosts: alpha: installing Echelon ...",
    ]
