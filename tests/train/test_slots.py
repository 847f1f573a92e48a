from __future__ import annotations

from echelon.train.slots import slot_seed


def test_a_slots_seed_depends_on_seed_step_and_slot_alone() -> None:
    seeds = {slot_seed(seed, step, slot) for seed in range(3) for step in range(50) for slot in range(8)}
    assert len(seeds) == 3 * 50 * 8
    assert slot_seed(1, 2, 3) == slot_seed(1, 2, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert slot_seed(1, 1, 0) == 584669268097970055, (
        "the golden value: changing it changes every run's dropout"
    )
