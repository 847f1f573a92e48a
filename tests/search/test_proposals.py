"""Which settings are tried: by Optuna from what is known, always new ones, and the same for the same trials."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from echelon.errors import UserError
from echelon.search.proposals import Sampler, importance, propose
from echelon.search.trials import RungResult, Trial
from echelon.search.varied_keys import ListedValues, ValueRange, Values, VariedKey

RATE = ValueRange("rate", 1e-4, 1e-2, is_log=True)
LAYERS = ValueRange("layers", 1, 6, is_whole=True)
KIND = ListedValues("kind", ("a", "b", [1, 2]))


def draw(
    varied: Sequence[VariedKey], trials: Sequence[Trial], sampler: Sampler = "tpe", seed: int = 1
) -> Values | None:
    return propose(varied, trials, sampler, seed, lower_is_better=True, problem_of=lambda _: None)


def with_result(number: int, values: Values, *losses: float) -> Trial:
    results = {rung: RungResult((10, 40)[rung], loss) for rung, loss in enumerate(losses)}
    return Trial(number, values, (10, 40), 10, results)


def search_with(sampler: Sampler, seed: int, count: int) -> list[Trial]:
    """Trials whose loss is the distance from a rate of 1e-3, in decades."""
    trials = list[Trial]()
    for number in range(count):
        values = draw([RATE], trials, sampler, seed)
        assert values is not None
        trials.append(with_result(number, values, abs(math.log10(values["rate"]) + 3)))
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_settings_are_of_the_space_and_the_same_for_the_same_trials(sampler: Sampler) -> None:
    trials = list[Trial]()
    for number in range(12):
        values = draw([RATE, LAYERS, KIND], trials, sampler)
        assert values == draw([RATE, LAYERS, KIND], trials, sampler)
        assert values is not None
        assert 1e-4 <= values["rate"] <= 1e-2
        assert values["layers"] in range(1, 7)
        assert type(values["layers"]) is int
        assert values["kind"] in KIND.values
        assert all(values != trial.values for trial in trials)
        trials.append(with_result(number, values, *(float(number) for _ in range(number % 3))))
    assert draw([RATE], [], sampler, seed=1) != draw([RATE], [], sampler, seed=2)


def test_tpe_learns_from_trials_that_were_stopped_early() -> None:
    """Its last trials are nearer to the best setting than those of random sampling, over several seeds."""
    late: dict[Sampler, float] = dict.fromkeys(("tpe", "random"), 0.0)
    for sampler, seed in itertools.product(late, range(3)):
        trials = search_with(sampler, seed, 25)
        late[sampler] += sum(trial.results[0].value for trial in trials[15:])
    assert late["tpe"] < 0.8 * late["random"]


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_finite_space_is_tried_once_and_then_there_is_no_more(sampler: Sampler) -> None:
    varied = [KIND, ListedValues("size", (1, 2))]
    seen = list[Trial]()
    while (values := draw(varied, seen, sampler)) is not None:
        assert all(values != trial.values for trial in seen)
        seen.append(with_result(len(seen), values, 1.0))
    assert len(seen) == 6


def test_what_the_recipe_does_not_allow_is_not_proposed() -> None:
    def problem_of(values: Values) -> str | None:
        return None if values["kind"] == "b" else "only b"

    found = propose([KIND], [], "tpe", 1, lower_is_better=True, problem_of=problem_of)
    assert found == {"kind": "b"}
    only = [with_result(0, {"kind": "b"}, 1.0)]
    assert propose([KIND], only, "grid", 1, lower_is_better=True, problem_of=problem_of) is None
    with pytest.raises(
        UserError, match="the recipe allows none of the settings that are left; the last one: never"
    ):
        propose([RATE], [], "random", 1, lower_is_better=True, problem_of=lambda _: "never")


def test_importance_names_what_decides() -> None:
    varied: list[VariedKey] = [RATE, ListedValues("idle", (1, 2))]
    trials = [
        with_result(number, {"rate": 1e-4 * 1.3**number, "idle": 1 + number % 2}, float(number))
        for number in range(16)
    ]
    shares = importance(varied, trials, lower_is_better=True)
    assert shares is not None
    assert list(shares) == ["rate", "idle"]
    assert shares["rate"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert importance(varied, trials[:7], lower_is_better=True) is None, "few trials tell nothing"
