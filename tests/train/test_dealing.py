"""A step's slots dealt by speed."""

from __future__ import annotations

import itertools

import pytest

from echelon.train.dealing import OwnSpeed, deal, longest


@pytest.mark.parametrize(
    ("shares", "seconds", "dealt"),
    [
        ([3, 2, 2], [1 / 0.8, 1 / 0.4, 1 / 0.2], [4, 2, 1]),
        ([2, 2], [1.0, 1.0], [2, 2]),
        ([2, 2], [1.0, 9.0], [4, 0]),
        ([3, 2], [1.0, 1.04], [3, 2]),
        ([2, 3], [1.0, 1.04], [2, 3]),
        ([1, 0, 1], [1.0, 0.0, 1.0], [1, 0, 1]),
        ([0, 1, 1], [0.0, 5.0, 1.0], [1, 0, 1]),
        ([1, 1], [0.0, 0.0], [1, 1]),
        ([7], [3.0], [7]),
    ],
)
def test_slots_are_dealt_by_speed(shares: list[int], seconds: list[float], dealt: list[int]) -> None:
    assert deal(shares, seconds) == dealt


def test_no_other_deal_makes_a_step_shorter() -> None:
    for seconds in ([1.0, 2.0, 4.0], [3.0, 3.1, 1.7], [1.0, 10.0, 1.0]):
        dealt = deal([7, 0, 0], seconds)
        every = (each for each in itertools.product(range(8), repeat=3) if sum(each) == 7)
        shortest = min(longest(each, seconds) for each in every)
        assert longest(dealt, seconds) <= max(shortest, 0.95 * 7 * seconds[0])


def test_a_change_that_gains_next_to_nothing_is_not_made() -> None:
    assert deal([10, 10], [1.0, 1.02]) == [10, 10]
    assert deal([10, 10], [1.0, 1.2]) == [11, 9]


def test_a_speed_is_the_median_of_the_last_steps() -> None:
    speed = OwnSpeed()
    assert speed.seconds_per_slot == 0.0
    for seconds in (2.0, 2.2, 50.0, 2.1, 1.9):
        speed.note(seconds, 2)
    assert speed.seconds_per_slot == 1.05
    for _ in range(3):
        speed.note(4.0, 2)
    assert speed.seconds_per_slot == 2.0


def test_a_worker_without_slots_gets_another_chance_the_later_the_slower_it_was() -> None:
    chances = []
    for slow in (2.5, 10.0):
        speed, steps = OwnSpeed(), 0
        speed.note(slow, 1)
        while deal([2, 0], [1.0, speed.seconds_per_slot])[1] == 0:
            speed.note(0.0, 0)
            steps += 1
        chances.append(steps)
    assert 0 < chances[0] < chances[1]
