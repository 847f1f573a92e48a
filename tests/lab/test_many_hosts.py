"""Training on real hosts of the lab, over real SSH: it ends, and ends right, whichever host is lost on the way."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from echelon.lab.lab import Lab
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint
from tests.conftest import RECIPE, write_toy_corpus
from tests.integration.runs import assert_same_end

pytestmark = pytest.mark.slow
SETTINGS = (
    "train.steps=60",
    "checkpoint.every=10",
    "checkpoint.keep=10",
    "evaluate.every=30",
    "train.log_every=1",
)
_numbers = itertools.count()


class Training:
    """`echelon train --hosts` in a process of its own."""

    def __init__(self, lab: Lab, recipe: Path, folder: Path, *arguments: str) -> None:
        self.run = RunFolder(folder / f"run-{next(_numbers)}")
        hosts = ",".join(f"{host}:1" for host in lab.hosts)
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        command = [sys.executable, "-m", "echelon", "train", str(recipe), "--run", str(self.run.path)]
        self.process = subprocess.Popen(
            [*command, "--hosts", hosts, "--ssh-config", str(lab.ssh_config), *sets, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def steps(self) -> list[tuple[int, float]]:
        records = read_records(self.run.worker_records(0))
        return [(record["step"], record["time"]) for record in records if record["kind"] == "step"]

    def wait_for_step(self, step: int, after: float = 0.0) -> float:
        """The time at which such a step, or a later one, was made after a moment."""
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and self.process.poll() is None:
            times = [at for number, at in self.steps() if number >= step and at > after]
            if times:
                return times[0]
            time.sleep(0.05)
        raise AssertionError(f"step {step} did not come: {self.finish(status=None)}")

    def wait_for_workers(self, count: int, after: float) -> None:
        """Until so many workers have started together after a moment."""
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and self.process.poll() is None:
            records = read_records(self.run.worker_records(0))
            if any(r["kind"] == "start" and r["workers"] == count and r["time"] > after for r in records):
                return
            time.sleep(0.05)
        raise AssertionError(f"{count} workers did not start: {self.finish(status=None)}")

    def finish(self, status: int | None = 0) -> str:
        output, _ = self.process.communicate(timeout=200)
        assert status is None or self.process.returncode == status, output
        return output


@pytest.fixture(scope="module")
def recipe(lab: Lab) -> Path:
    folder = lab.shared / "toy"
    folder.mkdir()
    for name, lines, seed in (("train", 600, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_toy_corpus(folder, name, lines, seed)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


@pytest.fixture(scope="module", autouse=True)
def environment(lab: Lab) -> Iterator[None]:
    os.environ["ECHELON_CACHE"] = str(lab.shared / "cache")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    del os.environ["ECHELON_CACHE"]


@pytest.fixture(scope="module")
def undisturbed(lab: Lab, recipe: Path, environment: None) -> RunFolder:
    """The same recipe on this machine, with as many workers as there are hosts."""
    run = RunFolder(lab.shared / "undisturbed")
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "echelon", "train", str(recipe), "--run", str(run.path)]
    subprocess.run([*command, "--workers", str(len(lab.hosts)), *sets], check=True, capture_output=True)
    return run


@pytest.fixture(params=["shared folder", "own folders"])
def folder(request: pytest.FixtureRequest, lab: Lab) -> Path:
    return lab.shared if request.param == "shared folder" else lab.disk


@pytest.fixture
def train(lab: Lab, recipe: Path) -> Iterator[Callable[..., Training]]:
    begun: list[Training] = []

    def start(folder: Path, *arguments: str) -> Training:
        begun.append(Training(lab, recipe, folder, *arguments))
        return begun[-1]

    yield start
    for training in begun:
        if training.process.poll() is None:
            training.process.terminate()
            training.process.communicate(timeout=60)
    for host in lab.status().hosts:
        if not host.running:
            lab.boot(host.name)
        if not host.connected:
            lab.heal(host.name)


def assert_close_end(run: RunFolder, other: RunFolder) -> None:
    """The same model to rounding: the number of workers changed on the way."""
    one, two = (choose_checkpoint(folder.checkpoints, "last") for folder in (run, other))
    assert one.step == two.step
    others = two.load_model()
    for name, tensor in one.load_model().items():
        torch.testing.assert_close(tensor, others[name], rtol=1e-2, atol=1e-3)


def test_three_hosts_make_the_same_model_as_one_machine(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder
) -> None:
    training = train(folder)
    training.finish()
    assert_same_end(training.run, undisturbed)
    assert training.run.score_file("test").read_text() == undisturbed.score_file("test").read_text()


@pytest.mark.parametrize("victim", ["host1", "host3"], ids=["the one with the store", "another"])
def test_a_host_that_is_killed_does_not_end_the_run(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder, lab: Lab, victim: str
) -> None:
    training = train(folder)
    training.wait_for_step(15)
    lab.kill(victim)
    fault = time.time()
    recovered = training.wait_for_step(1, after=fault + 1)
    print(f"\n{victim} killed: the next step came {recovered - fault:.1f} s later")
    training.finish()
    assert_close_end(training.run, undisturbed)


def test_a_host_that_is_cut_off_comes_back(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder, lab: Lab
) -> None:
    training = train(folder)
    training.wait_for_step(15)
    lab.cut("host2")
    fault = time.time()
    recovered = training.wait_for_step(1, after=fault + 1)
    print(f"\nhost2 cut off: the next step came {recovered - fault:.1f} s later")
    lab.rate("host1", "1mbit")  # so that the others are not done before it is back
    lab.heal("host2")
    training.wait_for_workers(3, after=fault)
    lab.rate("host1", "1gbit")
    assert "a host has come back" in training.finish()
    assert_close_end(training.run, undisturbed)
