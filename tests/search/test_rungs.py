"""Successive halving: who continues does not depend on who arrives first, and is whom Optuna's pruner lets through."""

from __future__ import annotations

import random

import optuna
import pytest

from echelon.search.rungs import (
    Halving,
    TrialPlan,
    best_trial,
    default_rungs,
    explain_trial,
    fit_rungs,
    next_trial,
    plan_trial,
)
from echelon.search.trials import RungResult, Trial

optuna.logging.set_verbosity(optuna.logging.ERROR)
STEPS = (50, 200, 800)


def rules(trials: int = 16, *, lower_is_better: bool = True) -> Halving:
    return Halving(trials, 4, 2, lower_is_better)


def trial(number: int, *values: float) -> Trial:
    results = {rung: RungResult(STEPS[rung], value) for rung, value in enumerate(values)}
    return Trial(number, {"x": number}, STEPS, 50, results)


def simulate(
    order: random.Random, count: int, width: int, losses: dict[int, float]
) -> tuple[list[Trial], int]:
    """A whole search, `width` trials side by side that end in any order; its trials and the steps they made."""
    trials, busy = list[Trial](), dict[int, tuple[Trial, int]]()
    while True:
        while len(busy) < width:
            chosen = next_trial(trials, rules(count), busy)
            if chosen is None and len(trials) < count:
                trials.append(trial(len(trials)))
                chosen = trials[-1], 0
            if chosen is None:
                break
            busy[chosen[0].number] = chosen
        if not busy:
            return trials, sum(each.step for each in trials)
        done, rung = busy.pop(order.choice(sorted(busy)))
        done.results[rung] = RungResult(STEPS[rung], losses[done.number] / (rung + 1))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_same_trials_continue_in_whatever_order_they_arrive(width: int) -> None:
    for seed in range(20):
        dice = random.Random(seed)
        losses = {number: dice.random() for number in range(16)}
        trials, steps = simulate(dice, 16, width, losses)
        by_loss = sorted(losses, key=lambda number: losses[number])
        assert {each.number for each in trials if 1 in each.results} == set(by_loss[:4])
        assert {each.number for each in trials if 2 in each.results} == {by_loss[0]}
        assert steps == 12 * 50 + 3 * 200 + 800, "a sixth of the grid's"


def test_those_that_continue_are_those_that_optuna_s_pruner_lets_through() -> None:
    dice = random.Random(5)
    losses = [dice.random() for _ in range(16)]
    trials = [trial(number, loss) for number, loss in enumerate(losses)]
    first, others = next_trial(trials, rules(), ()), set[int]()
    busy = list[int]()
    while first is not None:
        others.add(first[0].number)
        busy.append(first[0].number)
        first = next_trial(trials, rules(), busy)
    allowed = set()
    for number in range(16):
        # The pruner decides when a trial arrives: as if each were the last one.
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=50, reduction_factor=4)
        study = optuna.create_study(pruner=pruner)
        for other in [*(n for n in range(16) if n != number), number]:
            asked = study.ask()
            asked.report(losses[other], 50)
            must_stop = asked.should_prune()
        if not must_stop:
            allowed.add(number)
    assert others == allowed


def test_a_trial_continues_as_soon_as_nothing_can_change_that() -> None:
    """With 15 of 16 results, the best three are certain, the fourth is not."""
    trials = [trial(number, float(number)) for number in range(15)]
    busy = set[int]()
    while (chosen := next_trial(trials, rules(), busy)) is not None:
        busy.add(chosen[0].number)
    assert busy == {0, 1, 2}


def test_higher_may_be_better() -> None:
    trials = [trial(number, float(number)) for number in range(16)]
    chosen = next_trial(trials, rules(lower_is_better=False), ())
    assert chosen is not None
    assert (chosen[0].number, chosen[1]) == (15, 1)


def test_a_failed_trial_makes_room_for_the_next_best() -> None:
    trials = [trial(number, float(number)) for number in range(16)]
    for each in trials[:3]:
        each.failure = "out of memory"
    busy = set[int]()
    while (chosen := next_trial(trials, rules(), busy)) is not None:
        busy.add(chosen[0].number)
    assert busy == {3, 4, 5, 6}


def test_with_more_trials_a_search_goes_on_from_where_it_was() -> None:
    dice = random.Random(1)
    losses = {number: dice.random() for number in range(32)}
    trials, _ = simulate(dice, 16, 2, losses)
    trials += [trial(number, losses[number]) for number in range(16, 32)]
    busy = set[int]()
    while (chosen := next_trial(trials, rules(32), busy)) is not None:
        busy.add(chosen[0].number)
    best_eight = sorted(losses, key=lambda number: losses[number])[:8]
    assert busy == {number for number in best_eight if 1 not in trials[number].results}


def test_interrupted_trials_continue_before_new_ones_and_those_near_the_end_first() -> None:
    trials = [trial(number, float(number)) for number in range(16)]
    for each in trials[:4]:
        each.results[1] = RungResult(200, float(each.number))
    chosen = next_trial(trials, rules(), ())
    assert chosen is not None
    assert (chosen[0].number, chosen[1]) == (0, 2)
    trials = [trial(0, 1.0), trial(1)]
    chosen = next_trial(trials, rules(), ())
    assert chosen is not None
    assert (chosen[0].number, chosen[1]) == (1, 0)


def test_rungs_are_shares_of_the_length_at_which_it_is_scored() -> None:
    assert plan_trial(800, 50, 4, 2) == TrialPlan((50, 200, 800), 50)
    assert plan_trial(800, 100, 4, 2) == TrialPlan((50, 200, 800), 50), "scored more often"
    assert plan_trial(1000, 25, 4, 2) == TrialPlan((50, 200, 1000), 25), "at a scoring, not later"
    assert plan_trial(800, 100, 4, 0) == TrialPlan((800,), 100)
    assert plan_trial(15, 10, 4, 2) is None
    assert fit_rungs(15, 4, 2) == 1
    for length in range(16, 400):
        plan = plan_trial(length, 7, 4, 2)
        assert plan is not None
        *early, last = plan.steps
        assert last == length
        assert all(0 < step < length and step % plan.every == 0 for step in early)
        assert plan.steps == tuple(sorted(set(plan.steps)))


def test_there_are_as_many_rungs_as_leave_one_trial() -> None:
    assert [default_rungs(trials, 4) for trials in (1, 3, 4, 15, 16, 63, 64)] == [0, 0, 1, 1, 2, 2, 3]
    assert default_rungs(16, 2) == 4


def test_the_best_is_of_those_that_came_furthest() -> None:
    """A result at an early rung is of a shorter training."""
    trials = [trial(0, 1.0), trial(1, 2.0, 1.5), trial(2, 3.0, 1.4)]
    assert best_trial(trials, rules()) is trials[2]
    assert best_trial([trial(0)], rules()) is None


def test_every_end_is_explained() -> None:
    trials = [trial(number, float(number)) for number in range(16)]
    trials[0].results |= {1: RungResult(200, 0.5), 2: RungResult(800, 0.25)}
    trials[3].failure = "out of memory\nlog"
    assert explain_trial(trials[0], trials, rules()) == "trained to the end"
    assert explain_trial(trials[8], trials, rules()) == "stopped at step 50: 8 of 15, and 4 continued"
    assert explain_trial(trials[3], trials, rules()) == "failed: out of memory"


def test_what_is_not_decided_yet_is_not_called_stopped() -> None:
    trials = [trial(number, float(number)) for number in range(15)]
    assert explain_trial(trials[2], trials, rules()) == "continues"
    assert explain_trial(trials[3], trials, rules()) == "4 of 15 so far"
    assert explain_trial(trial(15), trials, rules()) == "not yet compared"
    trials.append(trial(15, 15.0))
    assert explain_trial(trials[3], trials, rules()) == "continues"
    assert explain_trial(trials[4], trials, rules()) == "stopped at step 50: 5 of 16, and 4 continued"
