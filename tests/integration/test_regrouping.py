"""Workers that are killed in the middle of a run: the others keep their processes and their weights."""

from __future__ import annotations

import signal
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
    wait_for_step,
    wait_until,
    worker_process,
)

SETTINGS = ("train.steps=120", "evaluate.every=50", "checkpoint.every=1000", "restart.hang_seconds=60")
"""There is no checkpoint to go back to before step 50, so nobody can have read one."""


def steps(run: RunFolder) -> list[int]:
    return [record["step"] for record in read_records(run.worker_records(0)) if record["kind"] == "step"]


def kill(run: RunFolder, rank: int, *, after_step: int) -> None:
    """Kill a worker, and wait until the others have made a step with another one."""
    wait_for_step(run, after_step)
    before = begun_at(run)
    signal_worker(run, rank, signal.SIGKILL)
    wait_until(lambda: len(begun_at(run)) > len(before), "no other group was formed")
    begun = begun_at(run)[-1]
    assert begun >= after_step, "no step is lost"
    wait_for_step(run, begun + 1)


def test_a_killed_worker_costs_no_step_no_checkpoint_and_no_bit(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    whole = undisturbed(*SETTINGS, workers=3)
    run = RunFolder(tmp_path / "killed")
    with under_way([*train_words(toy_recipe, run, *SETTINGS), "--workers", "3"], run) as process:
        wait_for_step(run, 1)
        kept = worker_process(run, 2)
        kill(run, 1, after_step=10)
        assert worker_process(run, 2) == kept
        kill(run, 0, after_step=30)
        assert worker_process(run, 2) == kept
        assert process.wait(timeout=200) == 0
    assert_same_end(run, whole)
    events = [r["message"] for r in read_records(run.launcher_records) if r["kind"] == "event"]
    assert [event for event in events if event.startswith("restarting")] == [
        "restarting (1 of 3) with 3 workers; 2 workers kept the weights",
        "restarting (2 of 3) with 3 workers; 2 workers kept the weights",
    ]


@pytest.mark.slow
def test_a_range_of_workers_continues_at_once_with_those_that_are_left(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = undisturbed(*SETTINGS, workers=3)
    run = RunFolder(tmp_path / "left")
    with under_way([*train_words(toy_recipe, run, *SETTINGS), "--workers", "1:2"], run) as process:
        kill(run, 0, after_step=10)
        assert process.wait(timeout=200) == 0
    assert_same_end(run, whole)
