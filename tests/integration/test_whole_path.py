"""From a recipe to a scored model that translates, as a user does it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from echelon.monitor.meter import PHASES
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import choose_checkpoint, list_checkpoints

TrainToy = Callable[..., RunFolder]
Echelon = Callable[..., subprocess.CompletedProcess[str]]

LEARN = (
    "train.steps=400",
    "train.batch_tokens=3200",  # with half of it the score was 39 to 66, as seeds and rounding have it
    "model.dropout=0.0",
    "model.attention_dropout=0.0",
    "model.activation_dropout=0.0",
    "schedule.learning_rate=1e-2",
    "evaluate.every=200",
    "checkpoint.every=100",
)


def test_a_model_learns_is_scored_and_translates(
    train_toy: TrainToy, toy_recipe: Path, echelon: Echelon
) -> None:
    run = train_toy("learnt", *LEARN, workers=2)
    result = json.loads(echelon("evaluate", run.path, "--json").stdout)
    assert result["bleu"] > 40, result
    assert result.keys() >= {"bleu", "chrf", "loss", "perplexity", "signature", "checkpoint", "step"}
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]), rel=1e-4)

    # the sacrebleu command line, on the same output
    command = [sys.executable, "-m", "sacrebleu", str(toy_recipe.parent / "test.de"), "-i", result["outputs"]]
    theirs = subprocess.run(
        [*command, "-m", "bleu", "chrf", "-w", "4"], capture_output=True, text=True, check=True
    )
    scores = {entry["name"]: entry for entry in json.loads(theirs.stdout)}
    assert result["bleu"] == pytest.approx(scores["BLEU"]["score"], abs=0.005)
    assert result["chrf"] == pytest.approx(scores["chrF2"]["score"], abs=0.005)
    assert result["signature"] == scores["BLEU"]["signature"]

    # what train itself measured, with two workers
    kept = [r for r in read_records(run.worker_records(0)) if r["kind"] == "score"][-1]
    assert kept["bleu"] == pytest.approx(result["bleu"], abs=0.5)

    # a line in, a line out, in order; an empty line stays empty; odd characters harm nothing
    lines = ["one two", "", "three \x07red\u200b house", "x" * 5000, "blue bird"]
    translated = echelon("translate", run.path, stdin="\n".join(lines) + "\n").stdout.split("\n")
    assert len(translated) == len(lines) + 1
    assert translated[0] == "zwei eins"
    assert translated[1] == ""
    assert translated[4] == "Vogel blau"
    assert json.loads(echelon("translate", run.path, "--json", stdin="one two").stdout) == {
        "translations": ["zwei eins"]
    }

    listed = json.loads(echelon("runs", run.path.parent, "--json").stdout)
    assert [(entry["name"], entry["state"], entry["step"]) for entry in listed] == [
        ("learnt", "finished", 400)
    ]


@pytest.mark.slow
def test_best_last_and_average_are_different_weights(train_toy: TrainToy, echelon: Echelon) -> None:
    settings = ("train.steps=60", "evaluate.every=20", "checkpoint.every=20", "checkpoint.average=3")
    run = train_toy("run", *settings, "evaluate.final=average")
    losses = {}
    for which in ("best", "last", "average", str(list_checkpoints(run.checkpoints)[0].folder)):
        result = json.loads(echelon("evaluate", run.path, "--checkpoint", which, "--json").stdout)
        losses[which] = result["loss"]
    assert losses["average"] != losses["last"]
    kept = json.loads(run.score_file("test").read_text())
    assert kept["checkpoint"] == "average of 3 checkpoints", (
        "scoring another checkpoint changes nothing of the run's"
    )
    other = list_checkpoints(run.checkpoints)[0].folder.name
    assert json.loads(run.score_file(f"test-{other}").read_text())["loss"] == losses[which]
    scored = [r for r in read_records(run.worker_records(0)) if r["kind"] == "score"]
    assert scored[0]["checkpoint"] == "average of 3 checkpoints"
    assert scored[0]["loss"] == pytest.approx(losses["average"], rel=1e-5)


def test_early_stopping_stops_and_stays_stopped(train_toy: TrainToy) -> None:
    settings = (
        "train.steps=200",
        "evaluate.every=5",
        'early_stop=[{metric="bleu", patience=2, min_delta=100.0}]',
    )
    run = train_toy("early", *settings)
    assert choose_checkpoint(run.checkpoints, "last").step == 15
    train_toy("early", *settings)
    assert choose_checkpoint(run.checkpoints, "last").step == 15


def test_fine_tuning_starts_from_another_runs_weights_and_vocabulary(
    train_toy: TrainToy, toy_recipe: Path, echelon: Echelon
) -> None:
    first = train_toy("first", "train.steps=60", "evaluate.every=30")
    second = train_toy("second", "train.steps=1", f"train.init_from={first.path}")
    assert first.tokeniser.read_bytes() == second.tokeniser.read_bytes()
    start = [r["loss"] for r in read_records(first.worker_records(0)) if r["kind"] == "step"]
    tuned = [r["loss"] for r in read_records(second.worker_records(0)) if r["kind"] == "step"]
    assert tuned[0] < 0.9 * start[0]
    refused = echelon(
        "train", toy_recipe, "--run", first.path.parent / "x", "--set", "train.init_from=/nowhere", status=2
    )
    assert "there is no run here" in refused.stderr


def test_float16_trains_with_loss_scaling_and_says_when_it_backs_off(train_toy: TrainToy) -> None:
    run = train_toy("half", "train.steps=25", "train.precision=fp16", "train.clip_norm=1.0")
    records = read_records(run.worker_records(0))
    losses = [r["loss"] for r in records if r["kind"] == "step"]
    assert losses[-1] < losses[0]
    state = choose_checkpoint(run.checkpoints, "last").load_state()
    events = [r["message"] for r in records if r["kind"] == "event"]
    assert len([m for m in events if "skipped" in m]) == state.skipped_steps
    assert state.precision["scale"] == 2.0 ** (16 - state.skipped_steps)


def test_the_run_folder_says_where_the_run_comes_from(train_toy: TrainToy) -> None:
    run = train_toy("run", "train.steps=4", "evaluate.every=2", "track.tensorboard=true")
    (start,) = json.loads(run.provenance.read_text())
    assert "train" in start["command"]
    assert start["versions"]["torch"].startswith("2.")
    records = read_records(run.worker_records(0))
    counts = Counter(record["kind"] for record in records)
    assert counts.pop("host") >= 1
    # Step 2 is saved twice: before the first scoring, so that nothing is lost if that fails, and with its score.
    assert counts == {"start": 1, "step": 4, "valid": 2, "sample": 8, "checkpoint": 3, "score": 1, "end": 1}
    assert (records[0]["kind"], records[-1]["kind"]) == ("start", "end")
    assert list(run.tensorboard.glob("events.out.tfevents.*"))


def test_tensorboard_gets_every_curve_and_the_samples(train_toy: TrainToy) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train_toy("run", "train.steps=4", "evaluate.every=2", "train.log_every=1", "track.tensorboard=true")
    events = EventAccumulator(str(run.tensorboard))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {
        *("train/loss", "train/learning_rate", "train/gradient_norm", "train/tokens_per_second"),
        *("train/step_seconds", "valid/bleu", "valid/chrf", "valid/loss", "valid/perplexity"),
        *(f"time/{phase}" for phase in PHASES),
    }
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2, 3, 4]
    assert "samples/0/text_summary" in events.Tags()["tensors"]


def test_benchmark_measures_without_leaving_a_run(
    toy_recipe: Path, tmp_path: Path, echelon: Echelon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = json.loads(echelon("benchmark", toy_recipe, "--steps", "3", "--workers", "2", "--json").stdout)
    assert result.keys() >= {"tokens_per_second", "seconds_per_step", "peak_share", "device"}
    assert 0 < result["peak_share"] < 1
    assert result["workers"] == 2
    assert result["kernels"]
    assert result["memory_bytes"] > 0
    assert not (tmp_path / "runs").exists()
