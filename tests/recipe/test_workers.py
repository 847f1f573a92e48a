"""How many workers a run may have."""

from __future__ import annotations

import pytest

from echelon.recipe.workers import WorkerRange, parse_workers, share_of


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, (1, 1)), (4, (4, 4)), ("4", (4, 4)), ("1:4", (1, 4)), (" 2:2 ", (2, 2))],
)
def test_a_number_or_a_range(value: object, expected: tuple[int, int]) -> None:
    assert parse_workers(value) == WorkerRange(*expected)


@pytest.mark.parametrize(
    "value", [0, -1, 1.5, True, "", "0:2", "4:1", "1:", ":4", "1-4", "many", "1:2:3", None]
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a whole number above 0, a range"):
        parse_workers(value)


def test_a_run_begins_with_the_most_that_have_a_core() -> None:
    assert WorkerRange(1, 4).at_start(cores=8) == 4
    assert WorkerRange(1, 4).at_start(cores=3) == 3
    assert WorkerRange(2, 4).at_start(cores=1) == 2
    assert WorkerRange(4, 4).at_start(cores=1) == 4


def test_auto_is_any_number_and_one_for_each_core_where_nobody_measures() -> None:
    workers = parse_workers("auto")

    assert (str(workers), workers.is_auto, workers.at_start(6)) == ("auto", True, 6)


@pytest.mark.parametrize("num_slots", range(1, 13))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
def test_every_slot_is_computed_by_exactly_one_worker_and_the_load_is_even(num_slots: int, size: int) -> None:
    shares = [share_of(num_slots, rank, size) for rank in range(size)]
    assert [slot for share in shares for slot in share] == list(range(num_slots))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
