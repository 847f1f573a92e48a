"""A run that is going on, as it is told."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from echelon.agent.outcome import RunOutcome
from echelon.cluster.roster import write_roster
from echelon.commands.results import format_status
from echelon.commands.running import watch
from echelon.commands.runs import summarise
from echelon.commands.status import get_status
from echelon.commands.stop import ask_to_stop
from echelon.errors import RunError
from echelon.files.checkpoint_layout import complete_folders
from echelon.monitor.records import RecordWriter
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from tests.cluster.own_folders import end, make_folder, make_sessions, write_records, write_whole
from tests.sample_recipe import sample_recipe


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return make_folder(tmp_path / "run")


def test_pace_and_time_left_are_those_of_the_report(run: RunFolder) -> None:
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


def test_workers_that_are_not_in_step_make_steps_side_by_side(run: RunFolder) -> None:
    recipe = sample_recipe("train.exchange=parameter_server", "exchange.synchronous=false")
    run.recipe.write_text(dump_recipe(recipe))
    for rank in range(3):
        records = RecordWriter(run.worker_records(rank))
        records.write("start", step=0, steps=100, workers=3)
        for step in range(rank + 1, 91, 3):
            phases = {"forward": 0.5, "backward": 1.0}
            records.write("step", step=step, seconds=1.5, targets=10, phases=phases)
        records.close()
    with run.lock():
        status = get_status(run)
    assert status.seconds_per_step == pytest.approx(0.5)
    assert status.seconds_left == pytest.approx((100 - 88) * 30 * 1.5 / 88)


def test_records_without_the_usual_values_are_no_crash(run: RunFolder) -> None:
    run.worker_records(0).write_text('{"kind": "step", "step": 1}\n{"kind": "step", "seconds": "long"}\n')
    run.launcher_records.write_text('{"kind": "event"}\n{"kind": "event", "generation": "x", "message": 7}\n')
    status = get_status(run)
    ignored = [
        f"{name}.jsonl: records ignored because their values cannot be true: 1"
        for name in ("worker-0", "launcher")
    ]
    assert (status.seconds_per_step, status.generation, status.events) == (None, None, ["", *ignored])


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


@pytest.mark.parametrize("named", ["victim", "other user", "nobody"])
def test_only_a_process_that_holds_the_lock_is_signalled(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Whoever owns the folder could hold the lock and name any process in it, for root to end."""
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with victim, run.lock() as lock:
        pid = os.getpid() if named == "other user" else victim.pid
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {0 if named == 'nobody' else pid} on {socket.gethostname()}\n".encode(), 0)
        sent: list[object] = []
        monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
        if named == "other user":
            if os.geteuid() != 0:
                pytest.skip("needs root, to give the lock to another user")
            os.fchown(lock, 65534, -1)
        if named == "nobody":
            assert ask_to_stop(run, now=False) is False
        else:
            with pytest.raises(
                RunError, match=f"names process {pid}, which is not the one that holds the lock"
            ):
                ask_to_stop(run, now=False)
        assert sent == []


def test_a_run_on_another_machine_is_stopped_there(run: RunFolder) -> None:
    with run.lock() as lock:
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"process 1 on faraway\n", 0)
        with pytest.raises(RunError, match="is being trained on faraway; stop it there"):
            ask_to_stop(run, now=False)


def finish_elsewhere(tmp_path: Path) -> tuple[RunFolder, list[RunFolder]]:
    """A run that has finished on two hosts with folders of their own, after its launcher had died at step 13."""
    here, there = make_folder(tmp_path / "here"), [make_folder(tmp_path / name) for name in ("a", "b")]
    write_roster(here, make_sessions(there), "here", None)
    step = {
        "kind": "step",
        "targets": 9,
        "seconds": 0.5,
        "loss": 1.0,
        "learning_rate": 0.1,
        "gradient_norm": 1.0,
    }
    begun = [{"kind": "start", "step": 0, "steps": 80, "workers": 2}, step | {"step": 13}]
    write_records(here.worker_records(0), *begun)
    write_json(here.mirror_state(0), {"records/worker-0.jsonl": here.worker_records(0).stat().st_size})
    there[0].worker_records(0).write_bytes(here.worker_records(0).read_bytes())
    write_records(there[0].worker_records(0), step | {"step": 80}, {"kind": "end", "outcome": "finished"})
    for host, folder in enumerate(there):
        end(folder, host, RunOutcome("finished", launch="a"))
        write_whole(folder.checkpoints, 80, 80)
        folder.score_file("test").write_text('{"bleu": 33.0}')
    return here, there


def test_status_asks_hosts_with_own_folders_when_the_launcher_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here, _ = finish_elsewhere(tmp_path)
    status = get_status(here)
    assert (status.run.state, status.run.step, status.run.steps) == ("finished", 80, 80)
    assert [host.state for host in status.hosts] == ["stopped", "stopped"]
    assert status.seconds_left is None


def test_attaching_after_the_end_brings_records_checkpoint_and_scores_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    here, there = finish_elsewhere(tmp_path)
    result = watch(here, Console(quiet=True), may_stop=True)
    assert (result["state"], result["step"]) == ("finished", 80)
    assert here.worker_records(0).read_bytes() == there[0].worker_records(0).read_bytes()
    assert [step for step, _ in complete_folders(here.checkpoints)] == [80]
    assert summarise(here).bleu == 33.0
    shutil.rmtree(there[0].checkpoints)
    assert watch(here, Console(quiet=True), may_stop=True)["state"] == "finished", "it is not fetched twice"


def test_a_run_that_nobody_can_be_asked_about_is_told_as_of_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("echelon.monitor.run_state.FRESH_S", 0.0)
    here, there = finish_elsewhere(tmp_path)
    write_roster(
        here, [replace(session, python=("false",)) for session in make_sessions(there)], "here", None
    )
    words = format_status(get_status(here))
    assert words.splitlines()[0].startswith(f"{here.path}: unknown, step 13 of 80")
    assert "its launcher has gone, and not all of its hosts can be asked" in words
