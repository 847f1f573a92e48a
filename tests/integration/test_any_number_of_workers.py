"""The recipe decides the result; the number of workers does not."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from echelon.files.checkpoint_layout import MODEL
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint
from tests.integration.runs import assert_same_end

TrainToy = Callable[..., RunFolder]


def losses(run: RunFolder) -> list[float]:
    return [record["loss"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"]


def digest(run: RunFolder) -> str:
    """The SHA-256 of a run's last weights, as they lie in the file."""
    return hashlib.sha256(
        (choose_checkpoint(run.checkpoints, "last").folder / MODEL).read_bytes()
    ).hexdigest()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_one_two_three_and_four_workers_give_one_hash(train_toy: TrainToy, precision: str) -> None:
    """Five slots, dropout on, 30 steps: the same weights, losses, optimiser and state, every bit."""
    settings = (f"train.precision={precision}",)
    alone = train_toy("run-1", *settings, workers=1)
    curve = losses(alone)
    assert len(curve) == 30
    assert curve[-1] < 0.8 * curve[0], "a curve that does not move would prove nothing"
    for workers in (2, 3, 4):
        together = train_toy(f"run-{workers}", *settings, workers=workers)
        assert losses(together) == curve, f"{workers} workers"
        assert_same_end(together, alone)
        assert digest(together) == digest(alone)


def test_workers_without_a_slot_take_part_all_the_same(train_toy: TrainToy) -> None:
    settings = ("train.steps=5", "train.slots=2")
    alone, three = train_toy("alone", *settings, workers=1), train_toy("three", *settings, workers=3)
    assert_same_end(three, alone)
    assert losses(three) == losses(alone)


def test_two_workers_equal_torchs_own_ddp(train_toy: TrainToy, toy_recipe: Path, tmp_path: Path) -> None:
    """The same batches without dropout, 5 steps of Adam: DDP round the model, and ours."""
    settings = ("model.dropout=0.0", "model.attention_dropout=0.0", "model.activation_dropout=0.0")
    ours = train_toy("ours", "train.steps=5", "train.slots=4", *settings, workers=2)
    reference = tmp_path / "reference.safetensors"
    script = Path(__file__).with_name("ddp_reference.py")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(ours.path), str(reference)],
            env={**os.environ, **shared, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    theirs = safetensors.torch.load_file(reference)
    mine = choose_checkpoint(ours.checkpoints, "last").load_model()
    initial = json.loads(reference.with_suffix(".json").read_text())
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-6, msg=name)
    moved = sum(float(tensor.double().sum()) != initial[name] for name, tensor in mine.items())
    assert moved == len(mine), "weights that never moved would prove nothing"
