"""Learning curves whose law is known; test_real_curves.py has real ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from echelon.explain.curves import find_rise, forecast, smooth


def test_a_power_law_is_found_again() -> None:
    steps = [float(step) for step in range(1, 400)]
    found = forecast(steps, [1.5 + 4.0 * step**-0.6 for step in steps])
    assert found is not None
    assert found.at(800).expected == pytest.approx(1.5 + 4.0 * 800**-0.6, rel=0.01)


def test_noise_widens_the_interval_and_leaves_the_truth_in_it() -> None:
    dice = random.Random(3)
    steps = [float(step) for step in range(1, 400)]
    clean = [1.5 + 4.0 * step**-0.6 for step in steps]
    noisy = [value + dice.gauss(0, 0.2) for value in clean]
    found, sure = forecast(steps, noisy), forecast(steps, clean)
    assert found is not None
    assert sure is not None
    wide, narrow = found.at(800), sure.at(800)
    assert wide.high - wide.low > narrow.high - narrow.low
    assert 1.5 + 4.0 * 800**-0.6 in wide


def test_a_rising_curve_is_expected_to_stay_where_it_is() -> None:
    steps = [float(step) for step in range(1, 100)]
    found = forecast(steps, [2.0 + 0.01 * step for step in steps])
    assert found is not None
    assert found.at(200).expected == pytest.approx(found.last)


def test_a_gain_is_never_larger_than_the_loss() -> None:
    """A rate that falls at the end takes the loss far below every power law."""
    steps = [float(step) for step in range(1, 101)]
    found = forecast(steps, [4.0 * step**-0.5 if step < 80 else 0.02 * (101 - step) for step in steps])
    assert found is not None
    foreseen = found.at(200)
    assert 0 < foreseen.low <= foreseen.expected <= foreseen.high


def test_a_loss_near_zero_is_not_expected_to_halve_whatever_it_does() -> None:
    """The fits end at their largest power there; five runs of five were told that they would halve exactly."""
    steps = [float(step) for step in range(1, 401)]
    dice = random.Random(4)
    curves = {
        "flat": [max(0.005, 3.0 * 0.95**step) for step in steps],
        "steep": [3.0 * (1 + step / 20) ** -2 for step in steps],
    }
    shares = {}
    for name, losses in curves.items():
        found = forecast(steps, [loss * dice.uniform(0.9, 1.1) for loss in losses])
        assert found is not None
        shares[name] = found.at(800).expected / found.last
    assert shares["flat"] > 0.9
    assert shares["steep"] < 0.45


def test_equal_records_give_equal_curves_however_long_the_run_is() -> None:
    dice = random.Random(5)
    losses = [dice.random() for _ in range(800)]
    assert np.array_equal(smooth(losses)[:200], smooth(losses[:200]))


def test_too_few_points_give_no_forecast() -> None:
    assert forecast([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]) is None
    assert find_rise([1.0, 2.0, 3.0], [3.0, 2.0, 9.0]) is None


@pytest.mark.parametrize("points", [60, 1000])
def test_a_curve_that_rises_at_its_end_is_told_from_one_that_only_scatters(points: int) -> None:
    dice = random.Random(3)
    steps, turn = [float(step) for step in range(1, points + 1)], 0.8 * points
    falling = [2.0 + 6.0 * step**-0.5 for step in steps]
    turning = [
        value + max(0.0, step - turn) / points * 10 for step, value in zip(steps, falling, strict=True)
    ]
    for noise in (0.0, 0.1, 0.3):
        scatter = [dice.gauss(0, noise) for _ in steps]
        for plateau in (falling, [2.0] * points):
            assert find_rise(steps, np.add(plateau, scatter).tolist()) is None
        rise = find_rise(steps, np.add(turning, scatter).tolist())
        assert rise is not None
        assert rise.step == pytest.approx(turn, rel=0.2)
        assert rise.last - rise.lowest > 1


def test_smoothing_keeps_a_constant_and_the_length() -> None:
    assert np.allclose(smooth([2.0] * 50), 2.0)
    assert len(smooth([1.0, 2.0])) == 2
