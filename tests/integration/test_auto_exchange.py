"""`train.exchange = "auto"` where several hosts begin: measured, said, written down, kept."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echelon.explain.history import read_history
from echelon.monitor.records import read_records
from echelon.monitor.run_state import read_state
from echelon.recipe.loading import load_recipe
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, read_json, write_json
from tests.integration.runs import TrainToy


def run_on_two_hosts(run: RunFolder, workers: int = 1) -> None:
    """So many workers for each of two hosts, which this machine plays."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": str(2 * workers), "LOCAL_WORLD_SIZE": str(workers), "ECHELON_HOSTS": "2"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "echelon.train.worker", str(run.path)],
            env={**os.environ, **place, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank % workers)},
        )
        for rank in range(2 * workers)
    ]
    try:
        assert {worker.wait(timeout=120) for worker in started} == {0}
    finally:
        for worker in started:
            with worker:
                worker.kill()


def go_on_to(run: RunFolder, steps: int, **exchange: Any) -> None:
    recipe = load_recipe(run.recipe)
    train = recipe.train.model_copy(update={"steps": steps})
    settings = recipe.exchange.model_copy(update=exchange)
    run.recipe.write_text(dump_recipe(recipe.model_copy(update={"train": train, "exchange": settings})))


def messages(run: RunFolder, rank: int) -> list[str]:
    return [
        record["message"] for record in read_records(run.worker_records(rank)) if record["kind"] == "event"
    ]


def sizes(run: RunFolder) -> list[int]:
    return [record["workers"] for record in read_records(run.worker_records(0)) if record["kind"] == "start"]


@pytest.mark.slow
def test_auto_is_found_where_hosts_begin_and_kept(train_toy: TrainToy) -> None:
    run = train_toy("run", "train.exchange=auto", "train.steps=2", workers=1)
    assert load_recipe(run.recipe).train.exchange == "auto", "one worker has nobody to agree with"
    go_on_to(run, 4)
    run_on_two_hosts(run)
    found = load_recipe(run.recipe)
    assert found.train.exchange == "all_reduce", "nothing else is allowed"
    assert read_json(run.exchange)["hosts"] == found.exchange.hosts
    said = [message for message in messages(run, 0) if message.startswith('train.exchange = "auto"')]
    assert len(said) == 1
    go_on_to(run, 6)
    run_on_two_hosts(run)
    assert load_recipe(run.recipe).exchange == found.exchange
    assert len([message for message in messages(run, 0) if "auto" in message]) == 1, (
        "it is not measured again"
    )


@pytest.mark.slow
def test_hosts_that_do_not_pay_stand_by(train_toy: TrainToy) -> None:
    run = train_toy("run", "train.steps=2", workers=1)
    go_on_to(run, 6, hosts=1)
    run_on_two_hosts(run)
    assert sizes(run) == [1, 1]
    steps = [record["step"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"]
    assert steps == list(range(1, 7))
    assert messages(run, 1) == ["this host stands by: exchange.hosts = 1"]
    history = read_history(run)
    assert (history.num_hosts, history.hosts_given) == (1, 2), "one trains, two are paid for"


@pytest.mark.slow
def test_of_two_hosts_the_fastest_trains_and_is_worker_0_to_all_readers(
    train_toy: TrainToy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second host is faster: it trains, and what it writes is found where the first worker's records are."""
    run = train_toy("run", "train.steps=2", workers=1)
    go_on_to(run, 6, hosts=1)
    write_json(run.exchange, {"exchange": "all_reduce", "alone_seconds": {"slow": 1.49, "fast": 0.25}})
    named = (
        'import os, socket\nsocket.gethostname = lambda: ("slow", "fast")[int(os.environ.get("RANK", "0"))]\n'
    )
    (tmp_path / "sitecustomize.py").write_text(named)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    run_on_two_hosts(run)
    records = read_records(run.worker_records(0))
    assert [record["step"] for record in records if record["kind"] == "step"] == list(range(1, 7))
    assert [record["host"] for record in records if record["kind"] == "start"][-1] == "fast"
    assert messages(run, 1) == ["this host stands by: exchange.hosts = 1"]
    assert (sizes(run), read_state(run).name) == ([1, 1], "finished")


@pytest.mark.slow
@pytest.mark.parametrize(
    "exchange",
    ["compressed", *(pytest.param(other, marks=pytest.mark.long) for other in ("local", "parameter_server"))],
)
def test_those_who_train_do_not_wait_for_those_who_stand_by(train_toy: TrainToy, exchange: str) -> None:
    run = train_toy("run", f"train.exchange={exchange}", "train.steps=2", workers=1)
    go_on_to(run, 6, hosts=1)
    run_on_two_hosts(run, workers=2)
    assert sizes(run) == [1, 2]
    assert messages(run, 3) == ["this host stands by: exchange.hosts = 1"]


@pytest.mark.slow
def test_auto_measures_everything_on_hosts_of_several_workers(train_toy: TrainToy) -> None:
    allowed = 'train.exchange_may=["exact", "compressed", "low_rank", "local"]'
    settings = ("train.exchange=auto", allowed, "exchange.hierarchical=true", "train.steps=2")
    run = train_toy("run", *settings, workers=1)
    go_on_to(run, 4)
    run_on_two_hosts(run, workers=2)
    found = load_recipe(run.recipe)
    assert found.train.exchange in ("all_reduce", "compressed", "low_rank", "local")
    assert found.exchange.hierarchical
    if found.exchange.hosts == 1:
        assert found.train.exchange == "all_reduce"
