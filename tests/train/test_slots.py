from __future__ import annotations

import pytest

from echelon.train.slots import share_of, slot_seed


@pytest.mark.parametrize("num_slots", range(1, 13))
@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 16])
def test_every_slot_is_computed_by_exactly_one_worker_and_the_load_is_even(num_slots: int, size: int) -> None:
    shares = [share_of(num_slots, rank, size) for rank in range(size)]
    assert [slot for share in shares for slot in share] == list(range(num_slots))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_slots_seed_depends_on_seed_step_and_slot_alone() -> None:
    seeds = {slot_seed(seed, step, slot) for seed in range(3) for step in range(50) for slot in range(8)}
    assert len(seeds) == 3 * 50 * 8
    assert slot_seed(1, 2, 3) == slot_seed(1, 2, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert slot_seed(1, 1, 0) == 584669268097970055, (
        "the golden value: changing it changes every run's dropout"
    )
