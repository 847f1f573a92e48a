"""Experiments: which trainings they need, and what they conclude from made-up runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echelon.explain.experiments import (
    Experiment,
    checkpoint_intervals,
    conclude,
    draw_experiment,
    plan_stages,
)
from echelon.explain.history import History, read_history
from echelon.explain.sheet import standalone_svg
from tests.explain.made_runs import COMPUTING, MadeRun
from tests.sample_recipe import sample_recipe

SLOW = {rank: {**COMPUTING, "forward": 0.13} for rank in range(3)}


def made(folder: Path, **runs: MadeRun) -> list[History]:
    """Histories of runs, each in a folder of its name."""
    return [read_history(run.write(folder / name.replace("_", "-"))) for name, run in runs.items()]


def test_checkpoints_are_compared_with_hardly_any_and_a_best_score_saves_none() -> None:
    stages = plan_stages("checkpoints", 2000, sample_recipe(), 2)
    assert [stage.run for stage in stages] == ["at-the-end", "every-100", "every-500", "every-1000"]
    assert stages[1].settings == ("evaluate.every=2000", "checkpoint.every=100")
    assert stages[0].settings == ("evaluate.every=2000", "checkpoint.every=2000")


def test_a_short_training_has_checkpoints_as_often_as_a_long_one() -> None:
    assert checkpoint_intervals(5000) == [100, 500, 1000]
    assert checkpoint_intervals(200) == [10, 50, 100]
    assert checkpoint_intervals(24) == [1, 6, 12]
    assert checkpoint_intervals(2) == [1]


def test_a_resumed_run_is_interrupted_half_way_and_keeps_its_length() -> None:
    stages = plan_stages("resume", 2000, sample_recipe(), 2)
    assert [(stage.run, stage.steps, stage.stop_at) for stage in stages] == [
        ("uninterrupted", 2000, None),
        ("resumed", 2000, 1000),
        ("resumed", 2000, None),
    ]
    assert stages[1].overrides()[-1] == "train.stop_at=1000"
    assert len({stage.settings for stage in stages}) == 1


def test_every_exchange_is_tried_and_as_many_workers_train_with_servers() -> None:
    stages = plan_stages("exchanges", 50, sample_recipe(), 2)
    assert [(stage.run, stage.workers) for stage in stages] == [
        ("all_reduce", 2),
        ("compressed", 2),
        ("low_rank", 2),
        ("local", 2),
        ("servers-synchronous", 3),
        ("servers-asynchronous", 3),
    ]
    assert stages[3].overrides() == ["train.epochs=", "train.steps=50", "train.exchange=local"]
    assert stages[5].settings == (
        "train.exchange=parameter_server",
        "exchange.servers=1",
        "exchange.synchronous=false",
    )


@pytest.mark.parametrize(("slots", "setting"), [(2, ("train.slots=4",)), (6, ("train.slots=12",)), (8, ())])
def test_one_two_and_four_workers_share_the_same_steps_out_evenly(
    slots: int, setting: tuple[str, ...]
) -> None:
    stages = plan_stages("workers", 50, sample_recipe(f"train.slots={slots}", "train.batch_tokens=1536"), 2)
    assert [(stage.workers, stage.settings) for stage in stages] == [(n, setting) for n in (1, 2, 4)]


def test_the_cost_of_checkpoints_is_told_by_the_interval(tmp_path: Path) -> None:
    saving = {0: {**COMPUTING, "checkpoint": 0.1}}
    runs = made(
        tmp_path,
        at_the_end=MadeRun(overrides=("checkpoint.every=60",), valid=[(20, 3.9, 5.0), (40, 3.4, 9.0)]),
        every_10=MadeRun(overrides=("checkpoint.every=10",), phases=saving),
    )
    assert conclude("checkpoints", runs) == [
        "A checkpoint every 10 steps makes the run 100% longer than hardly any (12 seconds against 6 seconds), 6 s for "
        "each further checkpoint.",
        "at-the-end: 6 seconds; checkpoints written: 2, in 0% of the time; 100 ms a step",
        "every-10: 12 seconds; checkpoints written: 3, in 50% of the time; 200 ms a step",
    ]
    assert conclude("checkpoints", [runs[0], runs[0]])[0].startswith("Nothing that can be measured here")
    assert runs[1].share_of("checkpoint") == pytest.approx(0.5, abs=0.001)


def test_equal_curves_are_said_to_be_and_others_where_they_part(tmp_path: Path) -> None:
    whole = MadeRun(steps=30)
    same, other, short = made(
        tmp_path,
        same=whole,
        other=replace(whole, loss=lambda step: whole.loss(step) + (step > 20)),
        short=replace(whole, steps=29),
    )
    assert "every step and every digit" in conclude("resume", [same, same])[0]
    assert conclude("resume", [same, other])[0].startswith("The two curves differ from step 21: 3.3")
    assert conclude("resume", [same, short])[0].endswith("without the interruption, none with it.")


def test_workers_are_compared_with_one(tmp_path: Path) -> None:
    runs = made(
        tmp_path,
        workers_1=MadeRun(workers=1, hosts=1, phases=SLOW),
        workers_2=MadeRun(workers=2, hosts=1),
    )
    assert conclude("workers", runs) == [
        "2 workers make the same steps 2.00 times as fast as 1: 6 seconds against 12 seconds, 100% of perfect scaling.",
        "workers-1: 12 seconds, 1.00 times as fast as workers-1; 5,000 target tokens a second while it makes steps",
        "workers-2: 6 seconds, 2.00 times as fast as workers-1; 10,000 target tokens a second while it makes steps",
    ]


def test_workers_that_are_not_in_step_are_counted_side_by_side(tmp_path: Path) -> None:
    servers = ("train.exchange=parameter_server", "exchange.synchronous=false")
    in_step, not_in_step = made(tmp_path, all_reduce=MadeRun(), servers=MadeRun(overrides=servers))
    assert not_in_step.targets_per_second == pytest.approx(2 * in_step.targets_per_second)
    assert conclude("exchanges", [in_step, not_in_step]) == [
        "all-reduce is the fastest: 6 seconds for 60 steps; it ends with a training loss of "
        f"{in_step.last_loss:.4g}, the lowest.",
        "all-reduce: 6 seconds; 100 ms a step, 10,000 target tokens a second; the training loss at the end is "
        f"{in_step.last_loss:.4g}",
        "servers: 6 seconds; 50 ms a step, 20,000 target tokens a second; the training loss at the end is "
        f"{in_step.last_loss:.4g}",
    ]


@pytest.mark.parametrize("experiment", ["checkpoints", "resume", "workers", "exchanges"])
def test_every_experiment_has_a_chart(tmp_path: Path, experiment: Experiment) -> None:
    runs = made(
        tmp_path,
        one=MadeRun(overrides=("checkpoint.every=60",)),
        two=MadeRun(overrides=("checkpoint.every=10",)),
    )
    assert standalone_svg(draw_experiment(experiment, runs)).startswith("<svg")


def test_time_that_saving_does_not_explain_is_not_blamed_on_it(tmp_path: Path) -> None:
    runs = made(
        tmp_path,
        at_the_end=MadeRun(overrides=("checkpoint.every=60",), valid=()),
        every_1=MadeRun(overrides=("checkpoint.every=1",), phases=SLOW),
    )
    answer = conclude("checkpoints", runs)[0]
    assert answer.startswith("A checkpoint every step makes the run 100% longer")
    assert "only 0 seconds of that was waiting for checkpoints" in answer
