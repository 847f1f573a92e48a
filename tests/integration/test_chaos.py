"""A run that is killed, stopped, frozen and damaged at random ends where it would have ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.chaos import KINDS, Arena, Plan, Trial, last_loss, newest
from tests.integration.damage import differences, state_of, step_of
from tests.integration.runs import assert_same_end

SEED = 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena() as arena:
        yield arena
        assert arena.processes() == [], "a trial ends what it started"


def losses(run: RunFolder) -> dict[int, set[float]]:
    """The losses that were written down for each step, more than one where it was computed again."""
    found: dict[int, set[float]] = {}
    for record in read_records(run.worker_records(0)):
        if record["kind"] == "step":
            found.setdefault(record["step"], set()).add(record["loss"])
    return found


def test_a_fast_machine_makes_more_steps_for_the_same_events() -> None:
    plan = Plan(events=40, seed=4711)
    assert plan.steps == 360
    assert replace(plan, step_s=0.01).steps == 4000
    assert replace(plan, step_s=0.5).steps == 360


def test_a_run_that_ends_before_all_events_is_no_failure_and_says_how_many_struck(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trial(arena, Plan(events=4, seed=SEED)) as trial:
        looks = iter([False, False])
        monkeypatch.setattr(trial, "_tend", lambda: next(looks, True))
        monkeypatch.setattr(trial, "_is_training", lambda: True)
        trial._step = 1000
        monkeypatch.setattr(trial, "_strikes", dict.fromkeys(trial._strikes, lambda: ("struck", False)))
        summary = trial.suffer()
    assert str(summary).startswith("2 of 4 events struck")


@pytest.mark.slow
def test_any_misfortune_ends_with_the_bits_of_the_undisturbed_run(
    arena: Arena, capsys: pytest.CaptureFixture[str]
) -> None:
    """One event of each kind; `make chaos EVENTS=200` is the same with more of them."""
    plan = arena.measured(Plan(events=len(KINDS), seed=SEED))
    whole = arena.undisturbed("whole", plan.steps, workers=2)
    with Trial(arena, plan) as trial:
        summary = trial.suffer()
        with capsys.disabled():
            print(f"\n{summary}")
        assert {event.kind for event in summary.events} == set(trial.possible())
        assert len(summary.events) == plan.events
        assert step_of(newest(trial.run)) == plan.steps
        assert differences(newest(whole), newest(trial.run)) == []
        assert state_of(newest(whole))["waits"]["bleu"], "patience that never counted would prove nothing"
        curve, again = losses(whole), losses(trial.run)
        assert all(values == curve[step] for step, values in again.items()), "every step, each time"
        assert len(again) > 0.9 * plan.steps
        assert (trial.run.scores / "test.json").exists()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "workers", "within"),
    [
        (["train.exchange=parameter_server"], 3, 0.0),
        (["train.exchange=parameter_server", "exchange.synchronous=false"], 3, 0.1),
        (["train.exchange=local", "exchange.every=5", "exchange.overlap=2"], 3, 0.1),
        (["train.exchange=compressed", "exchange.wire=int8"], 2, 0.0),
        (["train.exchange=low_rank", "exchange.rank=2"], 2, 0.0),
        (["exchange.hierarchical=true"], 4, 0.0),
        (["train.exchange=compressed", "exchange.wire=int8", "exchange.hierarchical=true"], 4, 0.0),
    ],
)
def test_other_exchanges_survive_too(settings: list[str], workers: int, within: float) -> None:
    """Three are two workers and a server, four are on two hosts; where it depends on the moment who does what, the loss
    must be near."""
    kinds = ("kill worker", "kill all", "stop launcher", "freeze worker")
    plan = Plan(events=4, seed=SEED + 2, workers=(workers,), kinds=kinds)
    with Arena(settings, workers_per_host=2 if workers == 4 else None) as arena:
        whole = arena.undisturbed("whole", plan.steps, workers)
        with Trial(arena, plan) as trial:
            trial.suffer()
            assert step_of(newest(trial.run)) == plan.steps
            assert last_loss(trial.run) == pytest.approx(
                last_loss(whole), rel=within, abs=0.0 if within else 1e-9
            )


@pytest.mark.slow
@pytest.mark.long
def test_another_number_of_workers_at_each_start_changes_no_bit(
    arena: Arena, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Plan(events=10, seed=SEED + 1, workers=(1, 2, 3, 4))
    whole = arena.undisturbed("whole", plan.steps, workers=2)
    with Trial(arena, plan) as trial:
        summary = trial.suffer()
        with capsys.disabled():
            print(f"\n{summary}")
        assert len({record["workers"] for record in starts(trial.run)}) > 1
        assert step_of(newest(trial.run)) == plan.steps
        assert_same_end(trial.run, whole)
        curve = losses(whole)
        assert all(values == curve[step] for step, values in losses(trial.run).items()), (
            "every step, each time"
        )


def starts(run: RunFolder) -> list[dict[str, int]]:
    return [record for record in read_records(run.worker_records(0)) if record["kind"] == "start"]
