"""Curves in bounded memory: what they keep, and that it does not matter how their points arrived."""

from __future__ import annotations

import numpy as np
import pytest

from echelon.dashboard.thinning import MOST_BUCKETS, VALUE, Rows, ThinnedCurve


def rows_of(values: Rows) -> Rows:
    steps = np.arange(1.0, len(values) + 1)
    return np.column_stack([steps, steps / 10, 100 * steps, steps / 5, values])


def thinned(rows: Rows, size: int) -> ThinnedCurve:
    curve = ThinnedCurve()
    for start in range(0, len(rows), size):
        curve.extend(rows[start : start + size])
    return curve


@pytest.fixture
def noise() -> Rows:
    values: Rows = np.random.default_rng(1).normal(size=100_000)
    return values


def test_a_spike_of_one_step_in_a_hundred_thousand_stays(noise: Rows) -> None:
    noise[71_234], noise[12_345] = 50.0, -50.0
    points = thinned(rows_of(noise), 1000).points()
    assert len(points) <= 2 * MOST_BUCKETS
    assert points[points[:, VALUE].argmax()].tolist() == rows_of(noise)[71_234].tolist()
    assert points[points[:, VALUE].argmin()].tolist() == rows_of(noise)[12_345].tolist()
    assert (np.diff(points[:, 0]) > 0).all()


def test_what_is_kept_does_not_depend_on_how_points_arrived(noise: Rows) -> None:
    rows = rows_of(noise[:7777])
    whole, pieces = thinned(rows, len(rows)), thinned(rows, 7)
    assert np.array_equal(whole.points(), pieces.points())
    assert np.allclose(whole.means(), pieces.means())


def test_a_short_curve_is_kept_as_it_is(noise: Rows) -> None:
    rows = rows_of(noise[:300])
    assert np.array_equal(thinned(rows, 11).points(), rows)
    assert np.array_equal(thinned(rows, 11).means(), rows)


def test_means_are_those_of_all_points(noise: Rows) -> None:
    curve = thinned(rows_of(noise), 1000)
    width, means = curve.bucket_points, curve.means()
    whole = len(noise) // width
    expected = noise[: whole * width].reshape(whole, width).mean(axis=1)
    assert np.allclose(means[:whole, VALUE], expected)
    assert means[0, 0] == width, "a mean stands at its last step"


def test_what_is_not_finite_is_left_out() -> None:
    curve = thinned(rows_of(np.array([1.0, np.nan, np.inf, 2.0])), 4)
    assert curve.points()[:, [0, VALUE]].tolist() == [[1.0, 1.0], [4.0, 2.0]]


def test_going_back_forgets_later_points(noise: Rows) -> None:
    curve = thinned(rows_of(noise[:300]), 300)
    curve.go_back(100)
    curve.extend(rows_of(noise[:150])[100:])
    assert np.array_equal(curve.points(), rows_of(noise[:150]))
    long = thinned(rows_of(noise), 1000)
    long.go_back(50_000)
    assert 50_000 - long.bucket_points < long.means()[-1, 0] <= 50_000


def test_a_curve_is_restored_from_its_arrays(noise: Rows) -> None:
    rows = rows_of(noise[:5001])
    kept = ThinnedCurve.from_arrays(thinned(rows[:3000], 3000).to_arrays())
    kept.extend(rows[3000:])
    assert np.array_equal(kept.points(), thinned(rows, 5001).points())
    with pytest.raises(ValueError, match="no points"):
        ThinnedCurve.from_arrays(kept.to_arrays() | {"low": np.zeros((3, 2))})
