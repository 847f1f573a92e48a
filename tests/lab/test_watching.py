"""A run on hosts outlives its terminal; whoever comes to it can watch it, ask after it, and stop it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echelon.lab.lab import Lab
from echelon.runfolder import RunFolder
from tests.integration.runs import assert_same_end
from tests.lab.conftest import mostly_in_a_shared_folder, mostly_in_own_folders
from tests.lab.training import SETTINGS, Training, programs_left

pytestmark = pytest.mark.slow


def echelon(*words: str | Path, status: int = 0) -> str:
    command = [sys.executable, "-m", "echelon", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def ask(run: RunFolder) -> Any:
    """`status --json`, as a user of the lab would get it."""
    return json.loads(echelon("status", run.path, "--json"))


def all_programs_left(lab: Lab) -> list[str]:
    return [program for host in lab.hosts for program in programs_left(lab, host)]


def wait_until(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@mostly_in_own_folders
def test_ctrl_c_stops_every_process_on_every_host_and_the_same_command_goes_on(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder, lab: Lab
) -> None:
    training = train(folder)
    training.wait_for_step(15)
    training.process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    output = training.finish(status=1)
    print(f"\nCtrl-C: all hosts had saved and left {time.monotonic() - asked:.1f} s later")
    assert "interrupted" in output
    assert all_programs_left(lab) == []
    again = training.again()
    again.finish()
    assert_same_end(training.run, undisturbed)


@mostly_in_a_shared_folder
def test_a_run_outlives_its_launcher_and_can_be_watched_and_stopped_by_others(
    train: Callable[..., Training], folder: Path, undisturbed: RunFolder, lab: Lab
) -> None:
    training = train(folder, "--set", "train.steps=100000")
    training.wait_for_step(15)
    os.killpg(training.process.pid, signal.SIGKILL)
    training.process.communicate()
    status = ask(training.run)
    assert status["run"]["state"] == "training"
    assert [host["state"] for host in status["hosts"]] == ["running"] * 3
    command = [sys.executable, "-m", "echelon", "watch", str(training.run.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as watcher:
        assert watcher.stderr is not None
        assert any("loss" in line for line in watcher.stderr), "a step is shown"
        watcher.send_signal(signal.SIGINT)
        watcher.communicate(timeout=60)
    assert ask(training.run)["run"]["state"] == "training"
    assert "interrupted" in echelon("stop", training.run.path)
    assert all_programs_left(lab) == []
    assert "was not being trained" in echelon("stop", training.run.path)


@mostly_in_a_shared_folder
def test_a_host_that_was_cut_off_when_the_run_was_stopped_keeps_nobody_out(
    train: Callable[..., Training], folder: Path, lab: Lab
) -> None:
    training = train(folder, "--set", "train.steps=100000")
    training.wait_for_step(15)
    lab.cut(lab.hosts[2])
    assert "interrupted" in echelon("stop", training.run.path)
    training.finish(status=1)
    lab.heal(lab.hosts[2])
    wait_until(lambda: ask(training.run)["hosts"][2]["state"] == "stopped")
    assert ask(training.run)["run"]["state"] == "interrupted"
    again, began = training.again(), time.time()
    again.wait_for_step(16, after=began)
    assert "interrupted" in echelon("stop", training.run.path)
    again.finish(status=1)
    assert all_programs_left(lab) == []


def test_hosts_with_own_folders_are_asked_and_their_result_comes_home_without_the_launcher(
    train: Callable[..., Training], undisturbed: RunFolder, lab: Lab
) -> None:
    training = train(lab.disk)
    training.wait_for_step(13)
    os.killpg(training.process.pid, signal.SIGKILL)
    training.process.communicate()
    stood = training.steps()[-1][0]
    wait_until(lambda: ask(training.run)["run"]["step"] > stood)
    wait_until(lambda: ask(training.run)["run"]["state"] == "finished", timeout_s=180)
    assert training.steps()[-1][0] == stood, "nobody brings back what the hosts write"
    assert "finished at step 100" in echelon("attach", training.run.path)
    assert_same_end(training.run, undisturbed)
    assert training.run.score_file("test").exists()


def test_a_detached_run_finishes_by_itself(lab: Lab, recipe: Path, undisturbed: RunFolder) -> None:
    run = RunFolder(lab.shared / "detached")
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    hosts = ",".join(f"{host}:1" for host in lab.hosts)
    where = ("--run", str(run.path), "--hosts", hosts, "--ssh-config", str(lab.ssh_config))
    echelon("train", recipe, *where, *sets, "--detach")
    echelon("attach", run.path)
    wait_until(lambda: not run.is_locked())
    assert_same_end(run, undisturbed)


@mostly_in_own_folders
def test_stopping_at_once_is_not_undone_by_the_launcher(
    train: Callable[..., Training], folder: Path, lab: Lab
) -> None:
    training = train(folder, "--set", "train.steps=100000")
    training.wait_for_step(15)
    assert "interrupted" in echelon("stop", training.run.path, "--now")
    training.finish(status=1)
    assert all_programs_left(lab) == []
