from __future__ import annotations

import gzip
import math
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from echelon.data import batches
from echelon.data.batches import BatchPlan, SlotPlan, length_sorted_batches, packed
from echelon.data.prepared import PairStore, Side
from echelon.data.tokeniser import EOS
from echelon.errors import DataError

lengths_of_pairs = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=120)


def side(lengths: Sequence[int]) -> Side:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = (np.arange(offsets[-1]) % 1000 + 4).astype(np.uint16)
    tokens[offsets[1:] - 1] = EOS
    return Side(tokens, np.array(lengths, np.uint32), offsets)


def store(lengths: Sequence[tuple[int, int]]) -> PairStore:
    return PairStore((side([s for s, _ in lengths]), side([t for _, t in lengths])))


def random_store(pairs: int, seed: int) -> PairStore:
    rng = np.random.Generator(np.random.PCG64(seed))
    source = np.clip(rng.lognormal(2.5, 0.5, pairs), 2, 80).astype(int)
    target = np.clip(source * rng.normal(1.05, 0.2, pairs), 2, 90).astype(int)
    return store(list(zip(source.tolist(), target.tolist(), strict=True)))


def plan(*stores: PairStore, weights: Sequence[float] = (), **settings: int) -> BatchPlan:
    chosen = {"batch_tokens": 400, "slots": 4, "max_tokens": 100, "seed": 1, **settings}
    return BatchPlan(stores, weights or [1.0] * len(stores), **chosen)


def epoch_slots(batch_plan: BatchPlan, epoch: int) -> list[SlotPlan]:
    first = epoch * batch_plan.slots_per_epoch
    return [batch_plan._slot(index) for index in range(first, first + batch_plan.slots_per_epoch)]


def pairs_of(slots: Sequence[SlotPlan], corpus: int = 0) -> Counter[int]:
    return Counter(int(pair) for slot in slots if slot.corpus == corpus for pair in slot.pairs)


def as_lists(slots: Sequence[SlotPlan]) -> list[tuple[int, list[int]]]:
    return [(slot.corpus, slot.pairs.tolist()) for slot in slots]


@settings(deadline=None)
@given(
    lengths=lengths_of_pairs,
    budget=st.integers(5, 60),
    max_tokens=st.integers(5, 40),
    epoch=st.integers(0, 5),
)
def test_every_usable_pair_occurs_exactly_once_in_an_epoch(
    lengths: list[tuple[int, int]], budget: int, max_tokens: int, epoch: int
) -> None:
    usable = {i for i, pair in enumerate(lengths) if max(pair) <= min(budget, max_tokens)}
    if not usable:
        with pytest.raises(DataError):
            plan(store(lengths), batch_tokens=budget, slots=1, max_tokens=max_tokens)
        return
    batch_plan = plan(store(lengths), batch_tokens=budget, slots=1, max_tokens=max_tokens)
    slots = epoch_slots(batch_plan, epoch)
    assert pairs_of(slots) == Counter(usable)
    assert batch_plan.left_out == len(lengths) - len(usable)
    for slot in slots:
        assert 0 < sum(max(lengths[pair]) for pair in slot.pairs) <= budget
        assert slot.source_tokens == sum(lengths[pair][0] for pair in slot.pairs)
        assert slot.target_tokens == sum(lengths[pair][1] for pair in slot.pairs)


@settings(deadline=None)
@given(lengths=lengths_of_pairs, budget=st.integers(30, 90))
def test_slots_are_cut_as_a_greedy_loop_cuts_them(lengths: list[tuple[int, int]], budget: int) -> None:
    sizes = [0]
    spent = 0
    for source, target in sorted(lengths, key=lambda pair: (pair[1], pair[0])):
        if spent + max(source, target) > budget:
            sizes.append(0)
            spent = 0
        sizes[-1] += 1
        spent += max(source, target)
    slots = epoch_slots(plan(store(lengths), batch_tokens=budget, slots=1), 0)
    assert sorted(len(slot.pairs) for slot in slots) == sorted(sizes)


def test_blocks_of_work_do_not_change_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = random_store(3000, 5)
    whole = as_lists(epoch_slots(plan(pairs), 1))
    monkeypatch.setattr(batches, "BLOCK_PAIRS", 64)
    assert as_lists(epoch_slots(plan(pairs), 1)) == whole


def test_planning_takes_few_bytes_of_memory_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BLOCK_PAIRS", 4096)
    numbers = np.arange(200_000, dtype=np.uint32)
    lengths = numbers % 50 + 3, numbers // 50 % 60 + 3
    sides = [Side(np.zeros(0, np.uint16), each, np.zeros(0, np.int64)) for each in lengths]
    tracemalloc.start()
    try:
        batch_plan = plan(PairStore((sides[0], sides[1])), batch_tokens=40_000)
        for epoch in range(4):
            batch_plan.step(math.ceil(epoch * batch_plan.steps_per_epoch))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 14 * len(numbers)


def test_step_depends_on_nothing_but_seed_and_step() -> None:
    pairs = random_store(500, 3)
    forwards, backwards = plan(pairs), plan(pairs)
    steps = [as_lists(forwards.step(step).slots) for step in range(60)]
    assert steps == [as_lists(backwards.step(step).slots) for step in reversed(range(60))][::-1]
    assert as_lists(plan(pairs).step(37).slots) == steps[37]
    assert as_lists(plan(pairs, seed=2).step(37).slots) != steps[37]
    assert 2 * forwards.steps_per_epoch < 60, "should span epochs"


def test_steps_take_consecutive_slots_across_epochs() -> None:
    batch_plan = plan(random_store(300, 3), slots=4)
    assert batch_plan.slots_per_epoch % 4, "an epoch should not be a whole number of steps here"
    assert batch_plan.steps_per_epoch == batch_plan.slots_per_epoch / 4
    stream = [slot for step in range(200) for slot in batch_plan.step(step).slots]
    for epoch in range(3):
        first = epoch * batch_plan.slots_per_epoch
        assert as_lists(stream[first : first + batch_plan.slots_per_epoch]) == as_lists(
            epoch_slots(batch_plan, epoch)
        )


def test_epochs_differ_in_order_and_in_company() -> None:
    batch_plan = plan(random_store(2000, 3))
    first, second = (as_lists(epoch_slots(batch_plan, epoch)) for epoch in (0, 1))
    assert len(first) == len(second)
    assert {frozenset(pairs) for _, pairs in first} != {frozenset(pairs) for _, pairs in second}
    sizes = [[len(pairs) for _, pairs in epoch] for epoch in (first, second)]
    assert sizes[0] != sizes[1]
    assert sorted(sizes[0]) == sorted(sizes[1])


def test_slots_of_an_epoch_are_not_in_order_of_length() -> None:
    lengths = [slot.target_tokens / len(slot.pairs) for slot in epoch_slots(plan(random_store(2000, 3)), 0)]
    half = len(lengths) // 2
    assert abs(np.mean(lengths[:half]) - np.mean(lengths[half:])) < 0.3 * np.std(lengths)


def test_weights_set_how_often_a_corpus_is_seen() -> None:
    stores = [random_store(400, 1), random_store(300, 2), store([(5, 5)] * 200)]
    batch_plan = plan(*stores, weights=[1.0, 2.0, 0.5])
    epochs = [epoch_slots(batch_plan, epoch) for epoch in range(2)]
    alone = [plan(one).slots_per_epoch for one in stores]
    share = Counter(slot.corpus for slot in epochs[0])
    assert share == {0: alone[0], 1: 2 * alone[1], 2: round(0.5 * alone[2])}
    assert set(pairs_of(epochs[0], 0).values()) == {1}
    assert pairs_of(epochs[0], 1) == Counter(dict.fromkeys(range(300), 2))
    assert alone[2] == 10
    assert pairs_of(epochs[0] + epochs[1], 2) == Counter(range(200))


def test_corpora_are_mixed() -> None:
    slots = epoch_slots(plan(random_store(800, 1), random_store(800, 2)), 0)
    half = Counter(slot.corpus for slot in slots[: len(slots) // 2])
    assert 0.35 < half[0] / half.total() < 0.65


def test_corpus_with_hardly_any_weight_or_no_pairs_is_no_error() -> None:
    batch_plan = plan(random_store(500, 1), random_store(50, 2), store([]), weights=[1.0, 0.0001, 1.0])
    slots = epoch_slots(batch_plan, 0)
    assert Counter(slot.corpus for slot in slots)[1] == 1
    assert not pairs_of(slots, 2)


def test_fewer_pairs_than_a_step_takes_come_round_again() -> None:
    step = plan(store([(3, 4)]), slots=4).step(5)
    assert as_lists(step.slots) == [(0, [0])] * 4
    assert (step.source_tokens, step.target_tokens) == (12, 16)


def test_data_of_which_nothing_can_be_used_are_explained() -> None:
    lengths = [(200, 5), (5, 90), (20, 90)]
    with pytest.raises(DataError) as caught:
        plan(store(lengths), batch_tokens=200, slots=4, max_tokens=100)
    assert str(caught.value) == (
        "no training pair can be used: of 3, 1 are longer than data.max_tokens = 100 and 2 longer than a slot, "
        "which holds train.batch_tokens / train.slots = 50 tokens; raise them"
    )


def test_absurd_lengths_are_left_out() -> None:
    batch_plan = plan(store([(70_000, 3), (5, 4)]), batch_tokens=10**6, slots=1, max_tokens=10**6)
    assert batch_plan.left_out == 1
    assert as_lists(batch_plan.step(0).slots) == [(0, [1])]


def test_the_order_never_changes() -> None:
    """Golden: whoever changes it breaks the resuming of every run there is."""
    batch_plan = plan(random_store_for_golden(), batch_tokens=80, slots=2, seed=7)
    assert [as_lists(batch_plan.step(step).slots) for step in (0, 1, 1000)] == GOLDEN


def random_store_for_golden() -> PairStore:
    return store([(2 + i * 7 % 5, 3 + i * 5 % 3) for i in range(40)])


GOLDEN: list[list[tuple[int, list[int]]]] = [
    [(0, [9, 12, 27, 5, 20, 35, 23, 8]), (0, [25, 10, 28, 13, 16, 31, 1, 19])],
    [(0, [38, 26, 11, 29, 14, 2, 32, 17]), (0, [34, 4, 7, 37, 22])],
    [(0, [10, 25, 28, 13, 31, 16, 1, 34]), (0, [0, 30, 15, 18, 33, 3, 36, 6, 21, 39, 24])],
]


@settings(deadline=None)
@given(lengths=lengths_of_pairs, data=st.data())
def test_packed_pairs_are_the_sentences_one_after_the_other(
    lengths: list[tuple[int, int]], data: st.DataObject
) -> None:
    pairs = store(lengths)
    indices = np.array(data.draw(st.lists(st.integers(0, len(lengths) - 1), max_size=20)), dtype=np.int64)
    gathered = packed(pairs, indices)
    assert len(gathered) == len(indices)
    for place, index in enumerate(indices):
        low, high = gathered.source_offsets[place : place + 2]
        assert gathered.source[low:high].tolist() == pairs.source(index).tolist()
        low, high = gathered.target_offsets[place : place + 2]
        assert gathered.target[low:high].tolist() == pairs.target(index).tolist()
    assert gathered.source_offsets[-1] == len(gathered.source)
    for array in (gathered.source, gathered.source_offsets, gathered.target, gathered.target_offsets):
        assert array.dtype == np.int64


def test_slot_is_loaded_from_its_own_corpus() -> None:
    stores = [random_store(100, 1), random_store(100, 2)]
    batch_plan = plan(*stores)
    for slot in batch_plan.step(3).slots:
        gathered = batch_plan.load(slot)
        assert gathered.target[: gathered.target_offsets[1]].tolist() == (
            stores[slot.corpus].target(int(slot.pairs[0])).tolist()
        )
        assert (len(gathered.source), len(gathered.target)) == (slot.source_tokens, slot.target_tokens)


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_batches_for_decoding_hold_like_lengths_within_the_limit(lengths: list[int], limit: int) -> None:
    array = np.array(lengths, dtype=np.uint32)
    made = length_sorted_batches(array, limit)
    assert sorted(int(index) for batch in made for index in batch) == list(range(len(lengths)))
    in_order = [lengths[index] for batch in made for index in batch]
    assert in_order == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or array[batch].max() * len(batch) <= limit for batch in made)


def test_batches_of_very_long_sentences_are_bounded_by_what_attention_takes() -> None:
    lengths = np.array([100] * 50 + [1024] * 4 + [2048] * 4 + [9000])
    batches = length_sorted_batches(lengths, 4096)
    costs = [len(batch) * int(lengths[batch].max()) ** 2 for batch in batches]
    assert costs[0] == 9000**2, "a single sentence is always a batch"
    assert max(costs[1:]) <= 4096 * 1024
    assert sorted(index for batch in batches for index in batch.tolist()) == list(range(len(lengths)))


def test_padding_of_real_captions_would_be_small(real_data: Path) -> None:
    folder = real_data / "multi30k" / "raw"
    texts = [gzip.decompress((folder / f"train.{side}.gz").read_bytes()).decode() for side in ("en", "de")]
    source, target = (
        np.array([len(line.split()) * 4 // 3 + 1 for line in text.split("\n")[:-1]]) for text in texts
    )
    pairs = store(list(zip(source.tolist(), target.tolist(), strict=True)))
    batch_plan = plan(pairs, batch_tokens=8192, slots=4, max_tokens=256)
    padding = padding_share(epoch_slots(batch_plan, 0), pairs)
    assert padding["target"] < 0.02
    assert padding["source"] < 0.12


def padding_share(slots: Sequence[SlotPlan], pairs: PairStore) -> dict[str, float]:
    """Share of padding if each slot were a rectangle."""

    def share(lengths: NDArray[np.uint32]) -> float:
        rectangles = sum(int(lengths[slot.pairs].max()) * len(slot.pairs) for slot in slots)
        return 1 - sum(int(lengths[slot.pairs].sum()) for slot in slots) / rectangles

    return {"source": share(pairs.source_lengths), "target": share(pairs.target_lengths)}
