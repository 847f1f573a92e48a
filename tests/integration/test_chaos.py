"""A run that is killed, stopped, frozen and damaged at random ends where it would have ended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.chaos import KINDS, Arena, Plan, Trial, last_loss, newest
from tests.integration.damage import differences, distance, good_checkpoints, state_of, step_of

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
def test_another_number_of_workers_at_each_start_changes_only_the_rounding(
    arena: Arena, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rounding is what undisturbed runs on 1, 2 and 4 workers differ by; a trial mixes these orders of summation, so
    it may be as far away as they are from each other, give or take: three times that is allowed. (Measured: they are
    4e-5 apart, relative to the weights' length, and a trial 1e-5.) One step moves the weights by 8e-4, several times
    what is allowed, so that a step that was lost or done twice would be seen."""
    plan = Plan(events=10, seed=SEED + 1, workers=(1, 2, 3, 4))
    whole = {workers: arena.undisturbed(f"on-{workers}", plan.steps, workers) for workers in (1, 2, 4)}
    ends = [newest(run) for run in whole.values()]
    allowed = 3 * max(distance(one, two) for one, two in itertools.combinations(ends, 2))
    before_end, end = good_checkpoints(whole[1].checkpoints)[-2:]
    one_step = distance(before_end, end) / (step_of(end) - step_of(before_end))
    with Trial(arena, plan) as trial:
        summary = trial.suffer()
        apart = distance(ends[0], newest(trial.run))
        with capsys.disabled():
            print(f"\n{summary}\nweights apart {apart:.1e}, allowed {allowed:.1e}, one step {one_step:.1e}")
        assert len({record["workers"] for record in starts(trial.run)}) > 1
        assert step_of(newest(trial.run)) == plan.steps
        assert 0 < apart < allowed < one_step / 3
        curve = losses(whole[1])
        for step, values in losses(trial.run).items():
            assert list(values) == pytest.approx(list(curve[step]) * len(values), rel=1e-4), f"step {step}"


def starts(run: RunFolder) -> list[dict[str, int]]:
    return [record for record in read_records(run.worker_records(0)) if record["kind"] == "start"]
