"""Whole runs with parameter servers: their end, their death, what the report says of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint
from tests.integration.runs import (
    SETTINGS,
    Echelon,
    TrainToy,
    Undisturbed,
    assert_close_end,
    begun_at,
    signal_worker,
    train_words,
    under_way,
    wait_for_step,
)

SERVED = (*SETTINGS, "train.exchange=parameter_server", "exchange.servers=2")


def last_loss(run: RunFolder) -> float:
    return float([r["loss"] for r in read_records(run.worker_records(0)) if r["kind"] == "valid"][-1])


def assert_same_numbers(run: RunFolder, other: RunFolder) -> None:
    one, two = (choose_checkpoint(r.checkpoints, "last") for r in (run, other))
    assert one.step == two.step
    for load in ("load_model", "load_optimiser"):
        tensors, others = getattr(one, load)(), getattr(two, load)()
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            torch.testing.assert_close(tensor, others[name], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_synchronous_servers_end_where_one_worker_does(
    undisturbed: Undisturbed, train_toy: TrainToy, echelon: Echelon
) -> None:
    alone = undisturbed(*SETTINGS, workers=1)
    served = train_toy("served", *SERVED, workers=4)
    assert_same_numbers(served, alone)
    report = json.loads(echelon("report", served.path, "--json").stdout)
    roles = {each["name"]: each for each in report["parameter_server"]}
    assert list(roles) == ["chief 0", "worker 1", "server 2", "server 3"]
    assert roles["chief 0"]["steps"] == 40
    assert roles["chief 0"]["most_stale"] == 0
    assert set(roles["worker 1"]["sent"]) == {"server 2", "server 3"}
    parameters = sum(
        tensor.numel() for tensor in choose_checkpoint(served.checkpoints, "last").load_model().values()
    )
    assert sum(roles["worker 1"]["sent"].values()) == pytest.approx(40 * 4 * parameters, rel=0.02)


@pytest.mark.slow
def test_a_server_that_dies_costs_no_more_than_a_worker(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    settings = (
        *SERVED,
        "train.steps=120",
    )  # steps are written down half a second late: it must not be done by then
    whole = undisturbed(*settings, workers=3)
    run = RunFolder(tmp_path / "struck")
    with under_way([*train_words(toy_recipe, run, *settings), "--workers", "3"], run) as process:
        wait_for_step(run, 13)
        signal_worker(run, 2, signal.SIGKILL)
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert len(begun_at(run)) == 2
    assert_close_end(run, whole)


@pytest.mark.slow
def test_asynchronous_servers_learn_nearly_the_same(undisturbed: Undisturbed, train_toy: TrainToy) -> None:
    alone = undisturbed(*SETTINGS, workers=1)
    served = train_toy("served", *SERVED, "exchange.synchronous=false", "exchange.staleness=2", workers=4)
    assert last_loss(served) == pytest.approx(last_loss(alone), rel=0.1)
    own = [
        record
        for rank in (0, 1)
        for record in read_records(served.worker_records(rank))
        if record["kind"] == "step"
    ]
    assert sorted(record["step"] for record in own) == list(range(1, 41)), "each step is one worker's"
    assert max(record["staleness"] for record in own) <= 2
