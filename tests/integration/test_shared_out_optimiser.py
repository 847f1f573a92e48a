"""Whole runs whose workers each keep a part of the optimiser: the result, resuming, and a worker that is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.runs import (
    Undisturbed,
    assert_same_end,
    begun_at,
    signal_worker,
    train_words,
    under_way,
    wait_for_checkpoint,
    wait_until,
)

TrainToy = Callable[..., RunFolder]

SETTINGS = ("train.clip_norm=0.5", "train.average_decay=0.9", "train.steps=20", "checkpoint.every=10")
SHARED = "train.shard=optimiser"


def curve(run: RunFolder) -> list[tuple[float, float]]:
    steps = [record for record in read_records(run.worker_records(0)) if record["kind"] == "step"]
    return [(step["loss"], step["gradient_norm"]) for step in steps]


def test_the_result_is_that_of_one_worker_and_a_run_resumes_shared_out_or_not(train_toy: TrainToy) -> None:
    alone = train_toy("alone", *SETTINGS, workers=1)
    norms = [norm for _, norm in curve(alone)]
    assert max(norms) > 0.5, "gradients that are not clipped would prove nothing of their norm"
    together = train_toy("together", *SETTINGS, SHARED, workers=3)
    assert curve(together) == curve(alone)
    assert_same_end(together, alone)
    for name, before, after in (("whole", (SHARED,), ()), ("parts", (), (SHARED,))):
        train_toy(name, *SETTINGS, *before, "train.stop_at=10", workers=2)
        resumed = train_toy(name, *SETTINGS, *after, workers=3)
        assert begun_at(resumed) == [0, 10]
        assert_same_end(resumed, alone)


@pytest.mark.slow
def test_workers_begin_again_from_a_checkpoint_if_one_of_them_is_lost(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    """Its part of the optimiser is nowhere else."""
    settings = ("train.steps=120", "evaluate.every=60", "checkpoint.every=10")
    whole = undisturbed(*settings, workers=2)
    run = RunFolder(tmp_path / "killed")
    with under_way([*train_words(toy_recipe, run, *settings, SHARED), "--workers", "2"], run) as process:
        wait_for_checkpoint(run)
        signal_worker(run, 1, signal.SIGKILL)
        wait_until(lambda: len(begun_at(run)) == 2, "the workers did not begin again")
        assert begun_at(run)[1] % 10 == 0
        assert begun_at(run)[1] > 0
        assert process.wait(timeout=200) == 0
    assert_same_end(run, whole)
