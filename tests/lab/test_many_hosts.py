"""Training on real hosts of the lab, over real SSH: it ends, and ends right, whichever host is lost on the way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from echelon.lab.lab import Lab
from echelon.runfolder import RunFolder
from tests.integration.runs import assert_same_end
from tests.lab.training import Training, assert_close_end, train_here, write_recipe

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recipe(lab: Lab) -> Path:
    return write_recipe(lab)


@pytest.fixture(scope="module", autouse=True)
def environment(lab: Lab) -> Iterator[None]:
    os.environ["ECHELON_CACHE"] = str(lab.shared / "cache")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    del os.environ["ECHELON_CACHE"]


@pytest.fixture(scope="module")
def undisturbed(lab: Lab, recipe: Path, environment: None) -> RunFolder:
    """The same recipe on this machine, with as many workers as there are hosts."""
    return train_here(lab, recipe, workers=len(lab.hosts))


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
