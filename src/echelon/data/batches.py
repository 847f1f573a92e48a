"""Which pairs each step trains on: a pure function of the pairs' lengths, the seed and the step.

An epoch of a corpus is cut into slots of pairs of like length. The cuts depend on the sorted lengths alone,
so an epoch has the same number of slots every time, and the slots of any step are found without replaying
earlier steps: the stream of slots is endless, slot g belongs to epoch g // slots_per_epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from echelon.data.prepared import PairStore, Side
from echelon.data.randomness import bit_generator, random_order
from echelon.errors import DataError

LONGEST = 0xFFFF
"""The most tokens a side may have, whatever the recipe says: two lengths must fit into 32 bits for sorting."""
ATTENTION_LENGTH = 1024
"""Tokens of a sentence from which attention decides about the memory that a batch takes."""
BLOCK_PAIRS = 1 << 20
"""Pairs worked on at a time, which bounds the memory it takes."""
EPOCHS_KEPT = 1
"""Orders kept: the last one is in use while the next is made, 4 bytes a pair each."""
PAIRS_OF_EPOCH, SLOTS_OF_EPOCH, CORPORA_OF_EPOCH = range(3)
"""What random bits are drawn for."""


@dataclass(frozen=True)
class SlotPlan:
    """One micro-batch: pairs of one corpus."""

    corpus: int
    pairs: NDArray[np.uint32]
    """[B] indices into the corpus."""
    source_tokens: int
    target_tokens: int


@dataclass(frozen=True)
class StepPlan:
    """The slots of one optimiser update."""

    slots: tuple[SlotPlan, ...]

    @property
    def source_tokens(self) -> int:
        return sum(slot.source_tokens for slot in self.slots)

    @property
    def target_tokens(self) -> int:
        return sum(slot.target_tokens for slot in self.slots)


@dataclass(frozen=True)
class PackedPairs:
    """Pairs without padding: source sentence i is source[source_offsets[i] : source_offsets[i + 1]]."""

    source: NDArray[np.int64]
    source_offsets: NDArray[np.int64]
    """[B + 1]"""
    target: NDArray[np.int64]
    target_offsets: NDArray[np.int64]
    """[B + 1]"""

    def __len__(self) -> int:
        return len(self.source_offsets) - 1


def packed(store: PairStore, indices: NDArray[np.integer]) -> PackedPairs:
    """The given pairs of a store, in the given order."""
    source, target = (_gather(side, indices) for side in store.sides)
    return PackedPairs(*source, *target)


def _gather(side: Side, indices: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    lengths = side.lengths[indices].astype(np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    positions = np.arange(offsets[-1]) + np.repeat(side.offsets[indices] - offsets[:-1], lengths)
    return side.tokens[positions].astype(np.int64), offsets


def length_sorted_batches(lengths: NDArray[np.integer], max_tokens: int) -> list[NDArray[np.int64]]:
    """Indices of all sentences in batches of similar length, the longest first.

    A batch padded to its longest sentence has at most `max_tokens` tokens, unless it is a single sentence; fewer if
    attention, whose memory grows with tokens times length, would need more than with sentences of ATTENTION_LENGTH.
    """
    order = np.argsort(-lengths.astype(np.int64), kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        size = max(1, max_tokens // max(longest, longest * longest // ATTENTION_LENGTH))
        batches.append(order[start : start + size])
        start += size
    return batches


class BatchPlan:
    """The slots of every step.

    A slot holds at most batch_tokens / slots tokens, each pair counted by its longer side, EOS included.
    Pairs with a side longer than that or than `max_tokens` are left out. DataError if none is left.
    """

    def __init__(
        self,
        stores: Sequence[PairStore],
        weights: Sequence[float],
        *,
        batch_tokens: int,
        slots: int,
        max_tokens: int,
        seed: int,
    ) -> None:
        assert len(stores) == len(weights)
        self._stores = list(stores)
        self._slots = slots
        self._seed = seed
        budget = batch_tokens // slots
        self._corpora = [
            _CorpusPlan(store, budget=budget, max_tokens=max_tokens, seed=seed, corpus=index)
            for index, store in enumerate(stores)
        ]
        self.left_out = sum(corpus.over_max_tokens + corpus.over_budget for corpus in self._corpora)
        """Pairs too long to be trained on."""
        self._check_any_left(budget, max_tokens)
        self._share = [
            max(1, round(weight * corpus.slots)) if corpus.slots else 0
            for weight, corpus in zip(weights, self._corpora, strict=True)
        ]
        self.slots_per_epoch = sum(self._share)
        self.steps_per_epoch = self.slots_per_epoch / slots
        self._mix_of_epoch = lru_cache(EPOCHS_KEPT)(self._mix)

    def _check_any_left(self, budget: int, max_tokens: int) -> None:
        if any(corpus.slots for corpus in self._corpora):
            return
        over_max = sum(corpus.over_max_tokens for corpus in self._corpora)
        over_budget = sum(corpus.over_budget for corpus in self._corpora)
        raise DataError(
            f"no training pair can be used: of {sum(map(len, self._stores)):,}, {over_max:,} are longer than "
            f"data.max_tokens = {max_tokens:,} and {over_budget:,} longer than a slot, which holds "
            f"train.batch_tokens / train.slots = {budget:,} tokens; raise them"
        )

    def step(self, step: int) -> StepPlan:
        """The slots of a step, counted from 0."""
        first = step * self._slots
        return StepPlan(tuple(self._slot(index) for index in range(first, first + self._slots)))

    def load(self, slot: SlotPlan) -> PackedPairs:
        """The tokens of a slot."""
        return packed(self._stores[slot.corpus], slot.pairs)

    def _slot(self, index: int) -> SlotPlan:
        epoch, place = divmod(index, self.slots_per_epoch)
        corpora, ranks = self._mix_of_epoch(epoch)
        corpus = int(corpora[place])
        pairs = self._corpora[corpus].slot(epoch * self._share[corpus] + int(ranks[place]))
        store = self._stores[corpus]
        source_tokens, target_tokens = (int(side.lengths[pairs].sum()) for side in store.sides)
        return SlotPlan(corpus, pairs, source_tokens, target_tokens)

    def _mix(self, epoch: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """For each slot of an epoch its corpus, and how many slots of that corpus precede it in the epoch."""
        corpora = np.repeat(np.arange(len(self._share), dtype=np.uint32), self._share)
        corpora = corpora[random_order(self.slots_per_epoch, self._seed, CORPORA_OF_EPOCH, 0, epoch)]
        ranks = np.empty_like(corpora)
        for corpus, share in enumerate(self._share):
            ranks[corpora == corpus] = np.arange(share, dtype=np.uint32)
        return corpora, ranks


class _CorpusPlan:
    """The endless stream of one corpus' slots."""

    def __init__(self, store: PairStore, *, budget: int, max_tokens: int, seed: int, corpus: int) -> None:
        self._seed = seed
        self._corpus = corpus
        limit = min(max_tokens, budget, LONGEST)
        self._sorted, self._group_starts, lengths = _sort_by_length(store, limit)
        self.over_max_tokens = _count_longer(store, max_tokens)
        self.over_budget = len(store) - self.over_max_tokens - len(self._sorted)
        self._cuts = _greedy_cuts(self._group_starts, lengths, budget)
        self.slots = len(self._cuts) - 1
        self._epoch = lru_cache(EPOCHS_KEPT)(self._shuffle)

    def slot(self, position: int) -> NDArray[np.uint32]:
        """Indices of the pairs in the slot at a position of the endless stream."""
        epoch, place = divmod(position, self.slots)
        pairs, slot_order = self._epoch(epoch)
        slot = slot_order[place]
        return pairs[self._cuts[slot] : self._cuts[slot + 1]]

    def _shuffle(self, epoch: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """An epoch's pairs, shuffled among those of equal lengths, and the order of its slots.

        Works on whole groups of equal lengths, about BLOCK_PAIRS at a time.
        """
        bits = bit_generator(self._seed, PAIRS_OF_EPOCH, self._corpus, epoch)
        pairs = np.empty_like(self._sorted)
        starts = self._group_starts
        first = 0
        while first < len(starts) - 1:
            last = int(np.searchsorted(starts, starts[first] + BLOCK_PAIRS))
            last = min(max(last, first + 1), len(starts) - 1)
            low, high = int(starts[first]), int(starts[last])
            group = np.repeat(np.arange(last - first, dtype=np.uint64), np.diff(starts[first : last + 1]))
            keys = group << np.uint64(32) | bits.random_raw(high - low) >> np.uint64(32)
            pairs[low:high] = self._sorted[low:high][np.argsort(keys, kind="stable")]
            first = last
        return pairs, random_order(self.slots, self._seed, SLOTS_OF_EPOCH, self._corpus, epoch)


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK_PAIRS) for start in range(0, count, BLOCK_PAIRS))


def _longer_sides(store: PairStore, block: slice) -> NDArray[np.uint32]:
    return np.maximum(store.source_lengths[block], store.target_lengths[block])


def _count_longer(store: PairStore, tokens: int) -> int:
    return sum(int(np.count_nonzero(_longer_sides(store, block) > tokens)) for block in _blocks(len(store)))


def _sort_by_length(
    store: PairStore, limit: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint32]]:
    """Indices of the pairs within the limit, ordered by length; where groups of equal lengths start, and the
    end; the lengths of each group (target << 16 | source).

    One number of 64 bits a pair, sorted in place, takes half the memory of sorting indices by lengths: with the indices
    that are kept, 12 bytes a pair at the most.
    """
    assert len(store) < 1 << 32
    keys = np.empty(len(store), np.uint64)
    count = 0
    for block in _blocks(len(store)):
        usable = np.flatnonzero(_longer_sides(store, block) <= limit)
        source, target = (side.lengths[block][usable].astype(np.uint64) for side in store.sides)
        key = target << np.uint64(48) | source << np.uint64(32) | (usable + block.start).astype(np.uint64)
        keys[count : count + len(key)] = key
        count += len(key)
    keys[:count].sort()
    halves = keys[:count].view(np.uint32).reshape(-1, 2)
    low = 0 if sys.byteorder == "little" else 1
    starts = _run_starts(halves[:, 1 - low])
    return halves[:, low].copy(), starts, halves[starts[:-1], 1 - low]


def _run_starts(values: NDArray[np.uint32]) -> NDArray[np.int64]:
    """The starts of runs of equal values, then the end."""
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    ends = [len(values)] if len(values) else []
    return np.concatenate([[0], changes, ends]).astype(np.int64)


def _greedy_cuts(starts: NDArray[np.int64], lengths: NDArray[np.uint32], budget: int) -> NDArray[np.int64]:
    """Cut sorted pairs into slots that each fill the budget as far as they can.

    Pairs `starts[i]` to `starts[i + 1]` all have the lengths `lengths[i]` (target << 16 | source).
    """
    costs = np.maximum(lengths >> np.uint32(16), lengths & np.uint32(LONGEST)).astype(np.int64)
    totals = np.concatenate([[0], np.cumsum(np.diff(starts) * costs)])
    pairs = int(starts[-1])
    cuts, spent = [0], 0
    while cuts[-1] < pairs:
        group = int(np.searchsorted(totals, spent + budget, side="right")) - 1
        cut, spent_before = int(starts[group]), int(totals[group])
        if group < len(costs):
            more = (spent + budget - spent_before) // int(costs[group])
            cut, spent_before = cut + more, spent_before + more * int(costs[group])
        cuts.append(cut)
        spent = spent_before
    return np.array(cuts, dtype=np.int64)
