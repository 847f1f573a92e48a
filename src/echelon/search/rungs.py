"""Successive halving, pure: where trials are compared, and which of them continues next.

A *rung* is a step at which trials pause and are compared. Of those at a rung, the best 1/FACTOR continue from their
checkpoints to the next; the last rung is the end of training. It does not matter in which order trials arrive: a trial
continues as soon as no result that is still to come could change that, and not earlier.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from echelon.search.trials import Trial


@dataclass(frozen=True)
class Halving:
    """The rules of one search."""

    trials: int
    """How many there are to be."""
    factor: int
    rungs: int
    """How often trials are compared before the end."""
    lower_is_better: bool

    def places(self, rung: int) -> int:
        """How many trials are to arrive at a rung."""
        return max(1, self.trials // int(self.factor**rung))


@dataclass(frozen=True)
class TrialPlan:
    """Where one trial is compared: its length may differ from that of others."""

    steps: tuple[int, ...]
    """Its rungs, the last being its length."""
    every: int
    """Steps between two scorings, of which each rung is one."""


def default_rungs(trials: int, factor: int) -> int:
    """As many as leave at least one trial for the end."""
    rungs = 0
    while trials >= factor ** (rungs + 1):
        rungs += 1
    return rungs


def fit_rungs(length: int, factor: int, rungs: int) -> int:
    """As many of these rungs as a training of `length` steps has room for."""
    while rungs and length < factor**rungs:
        rungs -= 1
    return rungs


def plan_trial(length: int, every: int, factor: int, rungs: int) -> TrialPlan | None:
    """The rungs of a training of `length` steps that is scored every so many; None if it is too short for them."""
    if fit_rungs(length, factor, rungs) < rungs:
        return None
    first = length // factor**rungs
    if rungs == 0:
        return TrialPlan((length,), every)
    if every <= first:
        first = first // every * every
    else:
        every = first
    return TrialPlan((*(first * factor**rung for rung in range(rungs)), length), every)


@dataclass(frozen=True)
class RungStanding:
    """How far the trials at one rung are from a decision."""

    ranked: list[Trial]
    """Those that have arrived, the best first."""
    missing: list[Trial]
    """Those that may come here, and have not arrived."""
    to_come: int
    """How many results there will still be."""
    continuing: list[Trial]
    """Those that continue, whatever the results still to come are."""


def standings(trials: Sequence[Trial], rules: Halving) -> list[RungStanding]:
    """Every rung's standing; a failed trial counts as if it had not been."""
    alive = [trial for trial in trials if trial.failure is None]
    expected = rules.trials - (len(trials) - len(alive))
    found, admitted = list[RungStanding](), alive
    for rung in range(rules.rungs + 1):
        arrived = [trial for trial in alive if rung in trial.results]
        missing = [trial for trial in admitted if rung not in trial.results]
        expected = min(expected, rules.places(rung)) if rung else expected
        to_come = max(expected - len(arrived), len(missing))
        ranked = rank(arrived, rung, lower_is_better=rules.lower_is_better)
        admitted = ranked[: max(0, rules.places(rung + 1) - to_come)] if rung < rules.rungs else []
        found.append(RungStanding(ranked, missing, to_come, admitted))
    return found


def next_trial(trials: Sequence[Trial], rules: Halving, busy: Collection[int]) -> tuple[Trial, int] | None:
    """Which trial is to be trained next, and to which rung; those nearest to the end come first.

    None if every trial that may continue is `busy` (being trained, or stopped by hand), or new ones are needed.
    """
    waiting = [(trial, rung) for rung, at in enumerate(standings(trials, rules)) for trial in at.missing]
    free = [(trial, rung) for trial, rung in waiting if trial.number not in busy]
    return max(free, key=lambda each: each[1], default=None)


def rank(trials: Sequence[Trial], rung: int, *, lower_is_better: bool) -> list[Trial]:
    """Trials at a rung, the best first; of equal ones, the older first."""
    sign = 1 if lower_is_better else -1
    return sorted(trials, key=lambda trial: (sign * trial.results[rung].value, trial.number))


def best_trial(trials: Sequence[Trial], rules: Halving) -> Trial | None:
    """The best of those that have come furthest; None if none has arrived at the first rung."""
    alive = [trial for trial in trials if trial.results and trial.failure is None]
    if not alive:
        return None
    furthest = max(trial.furthest for trial in alive)
    there = [trial for trial in alive if trial.furthest == furthest]
    return rank(there, furthest, lower_is_better=rules.lower_is_better)[0]


def explain_trial(trial: Trial, trials: Sequence[Trial], rules: Halving) -> str:
    """Why a trial is where it is."""
    if trial.failure is not None:
        return f"failed: {trial.failure.splitlines()[0]}"
    if not trial.results:
        return "not yet compared"
    rung = trial.furthest
    if rung == rules.rungs:
        return "trained to the end"
    here = standings(trials, rules)[rung]
    if trial in here.continuing:
        return "continues"
    place = f"{here.ranked.index(trial) + 1} of {len(here.ranked)}"
    if here.to_come:
        return f"{place} so far"
    continued = sum(other.furthest > rung or other in here.continuing for other in here.ranked)
    return f"stopped at step {trial.results[rung].step:,}: {place}, and {continued} continued"
