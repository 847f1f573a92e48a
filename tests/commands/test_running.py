"""A run that is going on, as it is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from echelon.commands.running import ask_to_stop, get_status
from echelon.errors import RunError
from echelon.monitor.records import RecordWriter
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder
from tests.sample_recipe import sample_recipe


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.write_text(dump_recipe(sample_recipe()))
    return run


def test_pace_and_time_left_come_from_the_last_steps(run: RunFolder) -> None:
    records = RecordWriter(run.worker_records(0))
    records.write("start", step=0, steps=100, workers=1)
    for step in (1, 2, 3):
        records.write("step", step=step, seconds=0.5 * step)
    records.close()
    with run.lock():
        status = get_status(run)
    assert status.run.state == "training"
    assert status.seconds_per_step == pytest.approx(1.0)
    assert status.seconds_left == pytest.approx(97.0)
    assert get_status(run).seconds_left is None, "nobody trains it now"


def test_steps_that_others_made_meanwhile_count_for_the_pace(run: RunFolder) -> None:
    records = RecordWriter(run.worker_records(0))
    records.write("start", step=0, steps=100, workers=4)
    for step in range(3, 91, 3):
        records.write("step", step=step, seconds=1.5)
    records.close()
    with run.lock():
        status = get_status(run)
    assert status.seconds_per_step == pytest.approx(0.5)
    assert status.seconds_left == pytest.approx(5.0)


def test_records_without_the_usual_values_are_no_crash(run: RunFolder) -> None:
    run.worker_records(0).write_text('{"kind": "step", "step": 1}\n{"kind": "step", "seconds": "long"}\n')
    run.launcher_records.write_text('{"kind": "event"}\n{"kind": "event", "generation": "x", "message": 7}\n')
    status = get_status(run)
    assert (status.seconds_per_step, status.generation, status.events) == (None, None, ["", "7"])


def test_a_run_that_nobody_trains_needs_no_stopping(run: RunFolder) -> None:
    assert ask_to_stop(run, now=True) is False


def test_a_run_on_this_machine_is_told_to_stop(run: RunFolder) -> None:
    code = (
        "import signal, sys; from pathlib import Path; from echelon.runfolder import RunFolder\n"
        f"with RunFolder(Path({str(run.path)!r})).lock():\n"
        "    print('locked', flush=True); signal.sigwait({signal.SIGTERM})\n"
    )
    block = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
    with subprocess.Popen([sys.executable, "-c", block + code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        assert ask_to_stop(run, now=False) is True
        assert process.wait() == 0


def test_a_run_on_another_machine_is_stopped_there(run: RunFolder) -> None:
    with run.lock() as lock:
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"process 1 on faraway\n", 0)
        with pytest.raises(RunError, match="is being trained on faraway; stop it there"):
            ask_to_stop(run, now=False)
