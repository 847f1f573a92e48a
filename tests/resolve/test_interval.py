from __future__ import annotations

import pytest

from echelon.resolve.interval import SavingCost, steps_between_saves, young_daly_seconds


def test_the_interval_is_where_saving_and_repeating_cost_the_least_together() -> None:
    """Lost time per second: cost / interval for saves, interval / 2 per failure for work done again."""
    cost_s, failure_s = 0.5, 24 * 3600.0
    best = young_daly_seconds(cost_s, failure_s)

    def lost(interval: float) -> float:
        return cost_s / interval + interval / 2 / failure_s

    assert all(lost(best) <= lost(best * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2.0))


def test_steps_are_counted_and_never_fewer_than_one() -> None:
    assert steps_between_saves(0.5, 2.0, 86400.0) == pytest.approx(
        young_daly_seconds(0.5, 86400.0) / 2.0, abs=0.5
    )
    assert steps_between_saves(0.001, 1e6, 86400.0) == 1
    assert steps_between_saves(0.0, 1.0, 86400.0) > 1


def test_the_interval_is_rounded_up_to_where_saving_asks_for_no_agreement_of_its_own() -> None:
    cost = SavingCost(save_s=0.5, step_s=2.0, failure_s=86400.0, period=1)
    freely = cost.choose_interval()
    assert freely == steps_between_saves(0.5, 2.0, 86400.0)
    assert SavingCost(0.5, 2.0, 86400.0, period=100).choose_interval() == 200 > freely > 100
    assert cost.explain(freely) == (
        f'checkpoint.every = "auto" is {freely} steps ({2 * freely} s) here: a save costs 0.500 s, '
        "and a failure is expected every 24 hours"
    )
