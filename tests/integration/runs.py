"""What tests of whole runs share: starting one, waiting for a step, finding its workers, comparing ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint

TrainToy = Callable[..., RunFolder]
Echelon = Callable[..., subprocess.CompletedProcess[str]]

SETTINGS = ("train.steps=40", "evaluate.every=15", "checkpoint.every=10", "checkpoint.keep=10")


def assert_same_end(run: RunFolder, other: RunFolder) -> None:
    """Weights, optimiser and state of the last checkpoints are equal, every bit."""
    one, two = (choose_checkpoint(r.checkpoints, "last") for r in (run, other))
    for load in ("load_model", "load_optimiser"):
        tensors, others = getattr(one, load)(), getattr(two, load)()
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, others[name]), f"{load} {name}"
    assert one.load_state() == two.load_state()


def start(recipe: Path, run: RunFolder, workers: int | str, *settings: str) -> subprocess.Popen[bytes]:
    sets = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "echelon", "train", str(recipe), "--run", str(run.path)]
    return subprocess.Popen(
        [*command, "--workers", str(workers), *sets], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def begun_at(run: RunFolder) -> list[int]:
    """The steps from which the run was begun, and gone on with: the same end alone may have been computed anew."""
    return [int(r["step"]) for r in read_records(run.worker_records(0)) if r["kind"] == "start"]


def wait_for_step(run: RunFolder, step: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(r["kind"] == "step" and r["step"] >= step for r in read_records(run.worker_records(0))):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} did not come")


def worker_processes(run: RunFolder) -> list[int]:
    """Processes whose command line names this run as a worker's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"echelon.train.worker" in words and str(run.path).encode() in words:
                found.append(int(entry.name))
    return found
