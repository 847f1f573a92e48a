"""Workers that die or hang in the middle of a run: the same command carries on by itself, and ends the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.runs import (
    SETTINGS,
    TrainToy,
    Undisturbed,
    assert_same_end,
    signal_worker,
    train_words,
    under_way,
    wait_for_step,
    worker_processes,
)

LONGER = (*SETTINGS, "train.steps=240", "evaluate.every=100", "checkpoint.every=20")
"""Enough steps to be hit twice in the middle."""
HANG = "restart.hang_seconds=10"
"""More than an honest step, or joining a group, takes beside many busy processes: 3 s was not."""


def training(
    recipe: Path, run: RunFolder, workers: int | str, *settings: str
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A run under way, its JSON on stdout."""
    return under_way([*train_words(recipe, run, *settings), "--workers", str(workers), "--json"], run)


def result_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, messages = process.communicate(timeout=200)
    assert process.returncode == 0, messages
    result: dict[str, Any] = json.loads(output)
    return {**result, "messages": messages}


def events(run: RunFolder) -> list[str]:
    return [record["message"] for record in read_records(run.launcher_records) if record["kind"] == "event"]


def hit(run: RunFolder, rank: int, number: signal.Signals, *, after_step: int) -> None:
    """Send a worker a signal once the run has come so far, and wait until a new group has done a step."""
    wait_for_step(run, after_step)
    before = len(starts(run))
    signal_worker(run, rank, number)
    fault = time.time()
    deadline = time.monotonic() + 120
    while len(starts(run)) == before or last_step_time(run) < starts(run)[-1]["time"]:
        assert time.monotonic() < deadline, events(run)
        time.sleep(0.05)
    again = starts(run)[-1]["time"]
    steps = [r["time"] for r in read_records(run.worker_records(0)) if r["kind"] == "step"]
    print(f"{number.name}: the next step {min(t for t in steps if t >= again) - fault:.2f} s later")


def starts(run: RunFolder) -> list[dict[str, Any]]:
    return [record for record in read_records(run.worker_records(0)) if record["kind"] == "start"]


def last_step_time(run: RunFolder) -> float:
    return float([r["time"] for r in read_records(run.worker_records(0)) if r["kind"] == "step"][-1])


@pytest.mark.slow
def test_workers_that_are_killed_cost_restarts_and_no_bit(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    whole = undisturbed(*LONGER, workers=2)
    run = RunFolder(tmp_path / "killed")
    with training(toy_recipe, run, 2, *LONGER) as process:
        hit(run, 1, signal.SIGKILL, after_step=30)
        hit(run, 0, signal.SIGKILL, after_step=90)
        result = result_of(process)
    assert (result["finished"], result["step"], result["restarts"]) == (True, 240, 2)
    first, restart, second, again = events(run)
    assert first.startswith("worker 1 on ")
    assert second.startswith("worker 0 on ")
    assert "failed (signal 9); its log is" in first
    assert restart == "restarting (1 of 3) with 2 workers; 1 worker kept the weights"
    assert again == "restarting (2 of 3) with 2 workers; 1 worker kept the weights"
    assert result["messages"].index("failed (signal 9)") < result["messages"].index(restart)
    assert "continuing after step" in result["messages"]
    assert worker_processes(run) == []
    assert_same_end(whole, run)


@pytest.mark.slow
def test_workers_that_are_stopped_are_noticed_and_cost_restarts_and_no_bit(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    whole = undisturbed(*LONGER, workers=2)
    run = RunFolder(tmp_path / "stopped")
    with training(toy_recipe, run, 2, *LONGER, HANG) as process:
        hit(run, 1, signal.SIGSTOP, after_step=30)
        hit(run, 0, signal.SIGSTOP, after_step=90)
        result = result_of(process)
    assert (result["finished"], result["step"], result["restarts"]) == (True, 240, 2)
    first, _, second, _ = events(run)
    assert first.startswith("worker 1 on ")
    assert second.startswith("worker 0 on ")
    assert re.search(r"no progress for \d+ seconds at step ", first)
    assert "stopped by a signal" in first
    for rank in (0, 1):
        stacks = run.worker_log(rank).read_text()
        assert stacks.count("most recent call first") >= 2
        assert " in train\n" in stacks, "every worker's stack is there, to see who waits for whom"
    assert_same_end(whole, run)


@pytest.mark.slow
def test_a_worker_that_hangs_in_its_own_code_is_told_from_the_one_that_waits_for_it(
    toy_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGUSR2 makes a worker wait for ever, from inside the interpreter, wherever it is."""
    hook = "import signal, threading\n"
    hook += "def wait_for_ever(*_): threading.Event().wait()\n"
    hook += "signal.signal(signal.SIGUSR2, wait_for_ever)\n"
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(hook)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'hook'}:{os.environ.get('PYTHONPATH', '')}")
    run = RunFolder(tmp_path / "deadlock")
    with training(toy_recipe, run, 2, *LONGER, HANG) as process:
        wait_for_step(run, 30)
        signal_worker(run, 1, signal.SIGUSR2)
        result = result_of(process)
    assert (result["step"], result["restarts"]) == (240, 1)
    assert events(run)[0].startswith("worker 1 on ")
    assert re.search(r"no progress for \d+ seconds at step ", events(run)[0])
    assert "in wait_for_ever" in events(run)[0]


@pytest.mark.slow
def test_a_range_of_workers_goes_on_with_the_one_that_is_left(
    undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    whole = undisturbed(*LONGER, workers=2)
    run = RunFolder(tmp_path / "left")
    with training(toy_recipe, run, "1:2", *LONGER) as process:
        wait_for_step(run, 40)
        signal_worker(run, 1, signal.SIGKILL)
        result = result_of(process)
    assert [record["workers"] for record in starts(run)] == [min(2, len(os.sched_getaffinity(0))), 1]
    assert (result["step"], result["restarts"]) == (240, 1)
    assert losses(run) == pytest.approx(losses(whole), rel=1e-3)


def losses(run: RunFolder) -> list[float]:
    """The loss of every step, as it was when the step was done for good."""
    by_step = {r["step"]: r["loss"] for r in read_records(run.worker_records(0)) if r["kind"] == "step"}
    return [by_step[step] for step in sorted(by_step)]


def test_a_mistake_that_only_workers_see_is_not_tried_again(
    train_toy: TrainToy, toy_recipe: Path, tmp_path: Path
) -> None:
    """The prepared data is gone when the workers look for it."""
    run = train_toy("mistake", "train.steps=2")
    run.data.write_text("{}")
    worker = subprocess.run(
        [sys.executable, "-m", "echelon.train.worker", str(run.path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert worker.returncode == 2
    assert "does not name the prepared data" in worker.stderr
