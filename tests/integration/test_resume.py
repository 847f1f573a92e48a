"""The same command goes on where it stopped, to the bit."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint, list_checkpoints
from tests.integration.runs import (
    ENDLESS,
    SETTINGS,
    Echelon,
    TrainToy,
    Undisturbed,
    assert_same_end,
    begun_at,
    length_beyond,
    signal_worker,
    train_words,
    under_way,
    wait_for_checkpoint,
    wait_for_step,
    worker_processes,
)


@pytest.mark.parametrize(
    "more",
    [
        ["train.precision=float32"],
        pytest.param(["train.precision=bf16"], marks=pytest.mark.slow),
        pytest.param(["train.exchange=compressed", "exchange.wire=int8"], marks=pytest.mark.slow),
        pytest.param(["train.exchange=low_rank", "exchange.rank=4"], marks=pytest.mark.slow),
        pytest.param(["train.exchange=parameter_server"], marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_by_sigterm_ends_with_the_same_bits(
    train_toy: TrainToy, undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path, more: list[str]
) -> None:
    settings = (*SETTINGS, *more)
    run = RunFolder(tmp_path / "interrupted")
    with under_way([*train_words(toy_recipe, run, *settings, ENDLESS), "--workers", "2"], run) as process:
        wait_for_step(run, 13)
        process.terminate()
        output, messages = process.communicate(timeout=60)
    assert process.returncode == 1
    saved = choose_checkpoint(run.checkpoints, "last").step
    assert f"saved at step {saved}" in output
    assert messages.count("stopping: the workers finish their step and save it; Ctrl-C again ends them") == 1
    length = length_beyond(saved)
    train_toy("interrupted", *settings, length, workers=2)
    assert begun_at(run) == [0, saved]
    assert_same_end(undisturbed(*settings, length, workers=2), run)


def wait_until_unlocked(run: RunFolder) -> None:
    deadline = time.monotonic() + 60
    while run.is_locked() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not run.is_locked(), "the lock goes with the last worker"


def test_a_run_killed_outright_ends_with_the_same_bits(
    train_toy: TrainToy, undisturbed: Undisturbed, toy_recipe: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "killed")
    with under_way([*train_words(toy_recipe, run, *SETTINGS, ENDLESS), "--workers", "2"], run):
        wait_for_checkpoint(run)
    wait_until_unlocked(run)
    newest = list_checkpoints(run.checkpoints)[-1].step
    length = length_beyond(newest)
    train_toy("killed", *SETTINGS, length, workers=2)
    assert begun_at(run) == [0, newest]
    assert_same_end(undisturbed(*SETTINGS, length, workers=2), run)


def test_a_killed_launcher_takes_its_workers_along(toy_recipe: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "orphans")
    words = train_words(toy_recipe, run, ENDLESS, "checkpoint.every=100000")
    with under_way([*words, "--workers", "2"], run) as process:
        wait_for_step(run, 3)
        assert len(worker_processes(run)) == 2
        process.kill()
        process.communicate(timeout=60)
        wait_until_unlocked(run)
        assert worker_processes(run) == []
    assert list_checkpoints(run.checkpoints), "workers save before they leave"


def test_a_worker_that_is_killed_is_named_and_the_run_goes_on_later(
    train_toy: TrainToy, toy_recipe: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "lost")
    words = train_words(toy_recipe, run, ENDLESS, "checkpoint.every=10", "restart.max_restarts=0")
    with under_way([*words, "--workers", "2"], run) as process:
        wait_for_step(run, 12)
        signal_worker(run, 0, signal.SIGKILL)
        _, messages = process.communicate(timeout=60)
        assert worker_processes(run) == []
    assert process.returncode == 1
    assert "worker 0 on " in messages
    assert "signal 9" in messages
    newest = max((checkpoint.step for checkpoint in list_checkpoints(run.checkpoints)), default=0)
    train_toy("lost", "train.steps=30", "checkpoint.every=10", workers=1)
    assert begun_at(run) == [0, newest]
    assert choose_checkpoint(run.checkpoints, "last").step >= 30


def test_a_second_start_of_a_run_is_refused(toy_recipe: Path, tmp_path: Path, echelon: Echelon) -> None:
    run = RunFolder(tmp_path / "busy")
    with under_way([*train_words(toy_recipe, run, ENDLESS), "--workers", "1"], run) as process:
        wait_for_step(run, 1)
        short = ["--set", "train.stop_at=2"]  # ends by itself if it is not refused
        refused = echelon("train", toy_recipe, "--run", run.path, "--set", ENDLESS, *short, status=2)
    assert f"being trained already, by process {process.pid}" in refused.stderr
    for verb in ("watch", "stop"):
        assert f"`echelon {verb} {run.path}`" in refused.stderr


def test_a_finished_run_is_left_as_it_is(train_toy: TrainToy) -> None:
    run = train_toy("done")
    before = choose_checkpoint(run.checkpoints, "last").folder.stat().st_mtime_ns
    train_toy("done")
    assert begun_at(run) == [0, choose_checkpoint(run.checkpoints, "last").step]
    assert choose_checkpoint(run.checkpoints, "last").folder.stat().st_mtime_ns == before


def test_a_longer_training_goes_on_from_a_finished_one(train_toy: TrainToy, undisturbed: Undisturbed) -> None:
    whole = undisturbed("train.steps=30", workers=1)
    train_toy("longer", "train.steps=20")
    longer = train_toy("longer", "train.steps=30")
    assert begun_at(longer) == [0, 20]
    one, two = (choose_checkpoint(run.checkpoints, "last").load_model() for run in (whole, longer))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


def test_another_recipe_is_refused(train_toy: TrainToy, toy_recipe: Path, echelon: Echelon) -> None:
    run = train_toy("mine", "train.steps=2")
    refused = echelon("train", toy_recipe, "--run", run.path, "--set", "model.d_ff=128", status=2)
    assert "begun with another recipe (model.d_ff changed)" in refused.stderr


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(
    train_toy: TrainToy, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    whole = undisturbed(*SETTINGS, workers=1)
    train_toy("damaged", *SETTINGS, "train.steps=30")
    run = RunFolder(tmp_path / "damaged")
    file = choose_checkpoint(run.checkpoints, "last").folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    train_toy("damaged", *SETTINGS)
    assert begun_at(run) == [0, 20]
    events = [r["message"] for r in read_records(run.worker_records(0)) if r["kind"] == "event"]
    assert any(str(file) in message and "older checkpoint" in message for message in events)
    one, two = (choose_checkpoint(r.checkpoints, "last").load_model() for r in (whole, run))
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())
