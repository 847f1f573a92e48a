"""Training on real hosts of the lab, over real SSH: it ends, and ends right, whichever host is lost on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from echelon.lab.lab import Lab
from echelon.runfolder import RunFolder
from tests.integration.runs import assert_same_end
from tests.lab.conftest import mostly_in_a_shared_folder, mostly_in_own_folders
from tests.lab.training import Training

pytestmark = pytest.mark.slow


def test_three_hosts_make_the_same_model_as_one_machine(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder
) -> None:
    training = train(folder)
    training.finish()
    assert_same_end(training.run, undisturbed)
    assert training.run.score_file("test").read_text() == undisturbed.score_file("test").read_text()


@pytest.mark.parametrize(
    ("folder", "victim"),
    [
        pytest.param("shared folder", "host1", id="shared folder-the one with the store"),
        pytest.param("own folders", "host3", id="own folders-another"),
        pytest.param("shared folder", "host3", id="shared folder-another", marks=pytest.mark.long),
        pytest.param("own folders", "host1", id="own folders-the one with the store", marks=pytest.mark.long),
    ],
    indirect=["folder"],
)
def test_a_host_that_is_killed_does_not_end_the_run(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder, lab: Lab, victim: str
) -> None:
    training = train(folder)
    training.wait_for_step(15)
    lab.kill(victim)
    fault = time.time()
    recovered = training.wait_for_step(1, after=fault + 1)
    print(f"\n{victim} killed: the next step came {recovered - fault:.1f} s later")
    told = training.finish()
    # Whoever loses its leader ends its workers.
    assert ("with the weights that 2 of 2 workers kept" in told) is (victim != "host1")
    assert_same_end(training.run, undisturbed)


@mostly_in_own_folders
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
    assert_same_end(training.run, undisturbed)


@mostly_in_a_shared_folder
def test_a_host_that_is_frozen_is_left_behind_and_harms_nothing_when_it_wakes(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder, lab: Lab
) -> None:
    training = train(folder)
    training.wait_for_step(15)
    lab.freeze("host1")
    fault = time.time()
    recovered = training.wait_for_step(1, after=fault + 1)
    print(f"\nhost1 frozen: the next step came {recovered - fault:.1f} s later")
    lab.thaw("host1")
    training.finish()
    assert_same_end(training.run, undisturbed)
