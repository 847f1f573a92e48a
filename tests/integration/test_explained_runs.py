"""Real trainings of each kind, in this process, and what their reports say of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from echelon.comm.group import Group
from echelon.commands.prepare import prepare_data
from echelon.commands.run_setup import write_run
from echelon.explain.report import Report, build_report
from echelon.monitor.records import RecordWriter
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from echelon.tasks.translation import TranslationTask
from echelon.train.loop import StopFlag
from echelon.train.worker import work
from tests.conftest import write_toy_corpus
from tests.integration.runs import TrainToy

Explain = Callable[..., Report]


@pytest.fixture
def explain(toy_recipe: Path, tmp_path: Path) -> Explain:
    """Trains the toy recipe with some settings in this process, and explains the run."""
    torch.set_num_threads(1)

    def train_and_explain(*settings: str) -> Report:
        recipe = load_recipe(toy_recipe, list(settings))
        run = RunFolder(tmp_path / "run")
        run.create()
        write_run(run, recipe, prepare_data(recipe, toy_recipe.parent, Console(quiet=True)))
        with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
            work(run, Group(0, 1), records, StopFlag())
        return build_report(run)

    return train_and_explain


def verdict(report: Report, key: str) -> str:
    return next(answer.verdict for answer in report.answers if answer.key == key)


def test_a_plain_run_is_bound_by_computing_and_its_time_is_accounted_for(explain: Explain) -> None:
    report = explain("train.steps=40", "checkpoint.every=20", "evaluate.every=20")
    document = report.to_json()
    assert document["bound"] == "compute"
    assert verdict(report, "network") == "no"
    assert sum(document["breakdown"].values()) == pytest.approx(document["seconds"], rel=0.02)
    assert document["breakdown"]["evaluation"] > 0
    assert document["breakdown"]["checkpoint"] > 0
    for step in report.history.steps[1:]:
        assert sum(step["phases"].values()) >= 0.98 * step["seconds"]
    assert "585 line pairs" in next(a.answer for a in report.answers if a.key == "training_set")


def test_a_run_whose_data_come_slowly_is_bound_by_its_input(
    explain: Explain, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = TranslationTask.load

    def load_slowly(task: TranslationTask, slot: Any) -> Any:
        time.sleep(0.15)
        return load(task, slot)

    monkeypatch.setattr(TranslationTask, "load", load_slowly)
    report = explain("train.steps=15")
    assert report.to_json()["bound"] == "input"
    assert verdict(report, "improvements") == "input"


@pytest.mark.parametrize(
    ("setting", "each"),
    [
        ("train.average_decay=0.9", 4 * (1 + 1 + 2)),  # the average, what trains, Adam
        ("train.exchange=local", 4 * (1 + 2 * 2 + 1)),  # weights, Adam of two replicas, the velocity
    ],
)
def test_nothing_of_a_checkpoint_is_left_unexplained(explain: Explain, setting: str, each: int) -> None:
    report = explain("train.steps=3", "checkpoint.every=3", setting)
    parameters = report.history.facts["parameters"]
    assert f"x {each} bytes" in next(a.answer for a in report.answers if a.key == "checkpoint")
    assert 0 <= report.history.checkpoints[-1]["bytes"] - each * parameters < 4 * parameters


@pytest.mark.slow
def test_two_workers_on_one_machine_are_told_that_nothing_goes_over_a_wire(train_toy: TrainToy) -> None:
    report = build_report(train_toy("two", "train.steps=6", workers=2))
    assert report.history.facts["exchange"] == "host_sum"
    assert verdict(report, "traffic") == "none"
    assert report.to_json()["network"]["expected_bytes_per_step"] == 0


@pytest.mark.slow
def test_a_run_that_learns_its_few_sentences_by_heart_overfits(explain: Explain, toy_recipe: Path) -> None:
    write_toy_corpus(toy_recipe.parent, "train", 12, seed=9)
    dropouts = [f"model.{name}=0.0" for name in ("dropout", "attention_dropout", "activation_dropout")]
    report = explain(
        "train.steps=240", "evaluate.every=30", "train.slots=1", "train.batch_tokens=128", *dropouts
    )
    assert verdict(report, "overfitting") == "yes"
    assert verdict(report, "trained") == "past its best"


@pytest.mark.slow
def test_a_run_that_was_cut_short_is_not_fully_trained(explain: Explain) -> None:
    report = explain("train.steps=60", "evaluate.every=20")
    assert verdict(report, "trained") == "no"
    assert verdict(report, "overfitting") == "no"
