"""The batches that a recipe asks for on its prepared data, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.data.batches import BatchPlan, StepPlan
from echelon.data.prepared import PairStore, Prepared
from echelon.recipe.schema import Recipe
from echelon.shapes.transformer import TokenCounts


def plan_batches(recipe: Recipe, prepared: Prepared) -> BatchPlan:
    """The recipe's slots, step by step."""
    return BatchPlan(
        prepared.train,
        [corpus.weight for corpus in recipe.data.train],
        batch_tokens=recipe.train.batch_tokens,
        slots=recipe.train.slots,
        max_tokens=recipe.data.max_tokens,
        seed=recipe.seed,
    )


def step_tokens(step: StepPlan, stores: Sequence[PairStore]) -> TokenCounts:
    """What the FLOPs of a step depend on, from the real lengths."""
    lengths: list[tuple[int, int]] = []
    for slot in step.slots:
        store = stores[slot.corpus]
        sources, targets = store.source_lengths[slot.pairs], store.target_lengths[slot.pairs]
        lengths += zip(sources.tolist(), targets.tolist(), strict=True)
    return TokenCounts.of(lengths)
