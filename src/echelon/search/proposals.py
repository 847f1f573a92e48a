"""Which settings are tried next: sampled by Optuna from what is known, or one after another from a grid.

Optuna's study is made anew from the trials for each question, in memory. So nothing of it is stored, and the answer
depends on the trials and the seed alone.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Literal

from echelon.errors import UserError
from echelon.extras import require_extra
from echelon.search.trials import Trial
from echelon.search.varied_keys import (
    ListedValues,
    Values,
    VariedKey,
    all_combinations,
    as_settings,
    count_combinations,
)

Sampler = Literal["tpe", "random", "grid"]
_MOST_DRAWS = 100
"""Settings drawn in a row that have been tried already, or that the recipe does not allow."""
_FEWEST_FOR_IMPORTANCE = 8


def load_optuna() -> ModuleType:
    """Optuna, silent; UserError that names the extra if it is not installed."""
    optuna = require_extra("optuna", "search")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def propose(
    varied: Sequence[VariedKey],
    trials: Sequence[Trial],
    sampler: Sampler,
    seed: int,
    *,
    lower_is_better: bool,
    problem_of: Callable[[Values], str | None],
) -> Values | None:
    """Settings for one more trial that are new and allowed; None if a finite space has no more.

    `problem_of` says what the recipe has against some settings; UserError if no allowed ones are found.
    """
    tried = {_identity(trial.values) for trial in trials}
    refused: list[str] = []

    def is_possible(values: Values) -> bool:
        if _identity(values) in tried:
            return False
        if (problem := problem_of(values)) is not None:
            refused.append(problem)
        return problem is None

    if sampler != "grid":
        draw = _draws_of(varied, trials, sampler, seed, lower_is_better=lower_is_better)
        for number in range(_MOST_DRAWS):
            if is_possible(values := draw(number)):
                return values
            if count_combinations(varied) is not None:
                break  # the rest of a finite space is drawn from at random below
    found = next(filter(is_possible, _shuffled(varied, seed)), None)
    is_exhausted = bool(trials) and count_combinations(varied) is not None
    if found is None and refused and not is_exhausted:
        raise UserError(
            f"--vary: the recipe allows none of the settings that are left; the last one: {refused[-1]}"
        )
    return found


def _shuffled(varied: Sequence[VariedKey], seed: int) -> list[Values]:
    """A finite space in an order of its own for each seed; nothing of an infinite one."""
    order = list(all_combinations(varied) or ())
    random.Random(seed).shuffle(order)
    return order


def _identity(values: Values) -> tuple[str, ...]:
    return tuple(sorted(as_settings(values)))


def _draws_of(
    varied: Sequence[VariedKey],
    trials: Sequence[Trial],
    sampler: Sampler,
    seed: int,
    *,
    lower_is_better: bool,
) -> Callable[[int], Values]:
    """A function from the number of a draw to settings."""
    optuna = load_optuna()
    direction = "minimize" if lower_is_better else "maximize"
    known = [
        trial for trial in map(functools.partial(_as_optuna, optuna, varied), trials) if trial is not None
    ]

    def draw(number: int) -> Values:
        own = random.Random(f"{seed} {len(trials)} {number}").getrandbits(32)
        chosen = (
            optuna.samplers.RandomSampler(own)
            if sampler == "random"
            else optuna.samplers.TPESampler(seed=own)
        )
        study = optuna.create_study(sampler=chosen, direction=direction)
        study.add_trials(known)
        asked = study.ask({each.key: _distribution(optuna, each) for each in varied})
        return {each.key: _from_optuna(each, asked.params[each.key]) for each in varied}

    return draw


def _distribution(optuna: ModuleType, varied: VariedKey) -> Any:
    if isinstance(varied, ListedValues):
        return optuna.distributions.CategoricalDistribution(range(len(varied.values)))
    if varied.is_whole:
        return optuna.distributions.IntDistribution(int(varied.low), int(varied.high), log=varied.is_log)
    return optuna.distributions.FloatDistribution(varied.low, varied.high, log=varied.is_log)


def _from_optuna(varied: VariedKey, value: Any) -> Any:
    return varied.values[value] if isinstance(varied, ListedValues) else varied.rounded(value)


def _to_optuna(varied: VariedKey, value: Any) -> Any:
    return varied.values.index(value) if isinstance(varied, ListedValues) else value


def _as_optuna(optuna: ModuleType, varied: Sequence[VariedKey], trial: Trial) -> Any:
    """A trial as Optuna knows it: complete at its last rung, pruned at an earlier one, failed, or under way."""
    states = optuna.trial.TrialState
    if trial.failure is not None:
        return None
    state = states.COMPLETE if trial.furthest == len(trial.rungs) - 1 else states.PRUNED
    return optuna.trial.create_trial(
        state=state if trial.results else states.RUNNING,
        value=trial.value if state == states.COMPLETE else None,
        params={each.key: _to_optuna(each, trial.values[each.key]) for each in varied},
        distributions={each.key: _distribution(optuna, each) for each in varied},
        intermediate_values={result.step: result.value for result in trial.results.values()},
    )


def importance(
    varied: Sequence[VariedKey], trials: Sequence[Trial], *, lower_is_better: bool
) -> dict[str, float] | None:
    """By key, its share in what decides a trial's result (Optuna's PED-ANOVA), the largest first.

    Results are those at the first rung, where all trials are: at later ones there are only good trials. None if there
    are too few trials, or nothing to tell them apart.
    """
    known = [trial for trial in trials if 0 in trial.results and trial.failure is None]
    values = {trial.results[0].value for trial in known}
    if len(known) < _FEWEST_FOR_IMPORTANCE or len(values) < 2:
        return None
    if len(varied) == 1:
        return {varied[0].key: 1.0}
    optuna = load_optuna()
    study = optuna.create_study(direction="minimize" if lower_is_better else "maximize")
    for trial in known:
        params = {each.key: _to_optuna(each, trial.values[each.key]) for each in varied}
        distributions = {each.key: _distribution(optuna, each) for each in varied}
        first = trial.results[0].value
        study.add_trial(optuna.trial.create_trial(value=first, params=params, distributions=distributions))
    judge = optuna.importance.PedAnovaImportanceEvaluator()
    shares: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=judge)
    return dict(sorted(shares.items(), key=lambda each: -each[1]))


def describe_space(varied: Sequence[VariedKey]) -> list[str]:
    """The space as `--vary` would say it, for comparing with that of an earlier start."""
    return sorted(map(str, varied))
