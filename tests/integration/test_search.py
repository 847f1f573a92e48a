"""A real search: killed outright, it loses no finished trial, and the best continues from its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import list_checkpoints
from tests.integration.runs import Echelon, assert_same_end, begun_at, wait_for_step
from tests.waiting import wait_until

VARY = ("--vary", "schedule.learning_rate=1e-5..2e-2:log", "--vary", "model.dropout=0.0,0.1")
RUNG, LENGTH = 150, 300
"""Steps, of which a trial makes some hundreds a second at most: enough of them to be killed on the way."""
HOW = (
    *("--trials", "4", "--factor", "2", "--rungs", "1", "--steps", str(LENGTH)),
    *("--set", "checkpoint.best=loss", "--set", f"evaluate.every={RUNG}"),
)


def search_records(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [record for record in read_records(folder / "search.jsonl") if record["kind"] == kind]


@pytest.mark.slow
def test_a_search_killed_outright_loses_no_finished_trial(
    toy_recipe: Path, tmp_path: Path, echelon: Echelon
) -> None:
    folder = tmp_path / "search"
    arguments = [
        "search",
        str(toy_recipe),
        *VARY,
        *HOW,
        "--folder",
        str(folder),
        "--to",
        str(tmp_path / "page.html"),
    ]
    second = RunFolder(folder / "trial-01")
    with subprocess.Popen(
        [sys.executable, "-m", "echelon", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as search:
        try:
            wait_for_step(second, 3)
            (trial,) = (child for child in psutil.Process(search.pid).children() if child.is_running())
        finally:
            search.kill()
    wait_until(lambda: not trial.is_running() or trial.status() == psutil.STATUS_ZOMBIE)
    wait_until(lambda: not second.is_locked())
    assert [record["trial"] for record in search_records(folder, "rung")] == [0]
    before = (folder / "search.jsonl").read_bytes()

    # The same command; this time a trial is killed.
    with subprocess.Popen(
        [sys.executable, "-m", "echelon", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as resumed:
        try:
            third = RunFolder(folder / "trial-02")
            wait_for_step(third, 3)
            (trial,) = (child for child in psutil.Process(resumed.pid).children() if child.is_running())
            trial.send_signal(signal.SIGKILL)
            output, messages = resumed.communicate()
        finally:
            resumed.kill()
    assert resumed.returncode == 0, messages
    assert "trial-02 was killed (signal 9); it resumes" in messages
    assert (folder / "search.jsonl").read_bytes().startswith(before)
    found = json.loads(output)
    assert found["finished"]
    assert sorted(trial["step"] for trial in found["trials"]) == [RUNG, RUNG, LENGTH, LENGTH]
    assert found["steps"] == 2 * RUNG + 2 * LENGTH

    # What was trained before goes on, and nothing is trained twice.
    first = found["trials"][0]
    assert begun_at(RunFolder(Path(first["run"]))) == ([0, RUNG] if first["step"] == LENGTH else [0])
    ahead = {trial["trial"] for trial in found["trials"] if trial["step"] == LENGTH}
    at_rung = {trial["trial"]: trial["results"][0]["value"] for trial in found["trials"]}
    assert ahead == set(sorted(at_rung, key=lambda number: at_rung[number])[:2])
    best = found["best"]
    assert best["value"] == min(trial["value"] for trial in found["trials"] if trial["trial"] in ahead)
    assert "Settings and results" in (tmp_path / "page.html").read_text()

    # Pausing at the rung has changed no bit: the best recipe, trained at a stretch, ends the same.
    alone = RunFolder(tmp_path / "alone")
    echelon("train", folder / "best.toml", "--run", alone.path, "--set", f"evaluate.every={RUNG}")
    assert_same_end(RunFolder(Path(best["run"])), alone)

    # The finished search trains nothing more.
    records = (folder / "search.jsonl").read_bytes()
    again = json.loads(echelon(*arguments, "--json").stdout)
    assert again["best"] == best
    assert (folder / "search.jsonl").read_bytes() == records


@pytest.mark.slow
def test_ctrl_c_lets_the_trial_save_and_leaves(toy_recipe: Path, tmp_path: Path) -> None:
    """As from a terminal: the whole foreground group gets it, and trials are told once."""
    folder = tmp_path / "search"
    endless = ("--rungs", "0", "--steps", "100000", "--trials", "2", "--parallel", "2")
    command = [
        sys.executable,
        "-m",
        "echelon",
        "search",
        str(toy_recipe),
        *VARY,
        *endless,
        "--folder",
        str(folder),
    ]
    runs = [RunFolder(folder / f"trial-{number:02}") for number in range(2)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as search:
        try:
            for run in runs:
                wait_for_step(run, 3)
            os.killpg(search.pid, signal.SIGINT)
            output, messages = search.communicate()
        finally:
            search.kill()
    assert search.returncode == 1, messages
    assert "stopping: the trials finish their step and save" in messages
    assert "The search is not finished; the same command resumes it." in output
    for run in runs:
        assert not run.is_locked()
        assert list_checkpoints(run.checkpoints), "each has saved"
    assert search_records(folder, "rung") == search_records(folder, "failure") == []
