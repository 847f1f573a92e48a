"""Hosts that share no folder: each keeps full checkpoints, and one that lacks the newest gets it from the others."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from echelon.launch.local import LocalJob, listen
from echelon.launch.placement import Placement
from echelon.monitor.records import read_records
from echelon.recipe.loading import load_recipe
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import list_checkpoints
from tests.integration.runs import TrainToy, Undisturbed, assert_same_end

SETTINGS = ("evaluate.every=15", "checkpoint.every=10", "checkpoint.keep=10")


@pytest.fixture
def folders(train_toy: TrainToy, tmp_path: Path) -> list[RunFolder]:
    """The folders of two "hosts", as their launcher leaves them before training."""
    begun = train_toy("begun", "train.steps=1", *SETTINGS)
    shutil.rmtree(begun.checkpoints)
    shutil.rmtree(begun.records)
    folders = [RunFolder(tmp_path / name) for name in ("host-a", "host-b")]
    for folder in folders:
        shutil.copytree(begun.path, folder.path)
        folder.create()
    return folders


def train_on_two_hosts(folders: list[RunFolder], steps: int) -> None:
    """Two workers on each host; the hosts meet on loopback."""
    listener = listen("127.0.0.1")
    port = listener.getsockname()[1]

    def train_one(number: int) -> bool:
        run = folders[number]
        recipe = load_recipe(run.recipe, [f"train.steps={steps}"])
        run.recipe.write_text(dump_recipe(recipe))
        place = Placement(4, 2 * number, port=port, shares_folder=False)
        with run.lock() as lock:
            job = LocalJob(run, 2, lock, place=place, listener=listener if number == 0 else None)
            return job.watch(lambda: None)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(train_one, range(2))) == [True, True]


@pytest.mark.slow
def test_each_host_keeps_everything_and_a_host_that_lost_it_is_given_the_newest(
    folders: list[RunFolder], undisturbed: Undisturbed
) -> None:
    whole = undisturbed("train.steps=30", *SETTINGS, workers=4)
    train_on_two_hosts(folders, 20)
    shutil.rmtree(folders[0].checkpoints)
    folders[0].create()
    train_on_two_hosts(folders, 30)
    for folder in folders:
        assert_same_end(folder, whole)
        assert folder.score_file("test").read_text() == whole.score_file("test").read_text()
    assert [c.step for c in list_checkpoints(folders[0].checkpoints)] == [20, 30]
    assert [c.step for c in list_checkpoints(folders[1].checkpoints)] == [10, 15, 20, 30]
    steps = [r["step"] for r in read_records(folders[0].worker_records(0)) if r["kind"] == "step"]
    assert steps == list(range(1, 31)), "nothing was trained twice"


@pytest.mark.slow
def test_of_two_checkpoints_of_one_step_the_other_is_kept_aside(
    folders: list[RunFolder], undisturbed: Undisturbed
) -> None:
    """Both halves of a cluster may have gone on alone; what they made differs by rounding, or more."""
    train_on_two_hosts(folders, 10)
    other = undisturbed("train.steps=10", "seed=9", *SETTINGS, workers=1)
    shutil.rmtree(folders[1].checkpoints / "step-00000010")
    shutil.copytree(other.checkpoints / "step-00000010", folders[1].checkpoints / "step-00000010")
    train_on_two_hosts(folders, 12)
    assert_same_end(folders[0], folders[1])
    assert (folders[1].checkpoints / "damaged-step-00000010-1").is_dir()
