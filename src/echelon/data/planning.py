"""The batches that a recipe asks for on its prepared data, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from echelon.data.batches import BatchPlan, StepPlan
from echelon.data.images.batches import ImagePlan
from echelon.data.images.store import PreparedImages, open_images
from echelon.data.prepared import PairStore, Prepared, open_prepared
from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.shapes.transformer import TokenCounts

AnyPrepared = Prepared | PreparedImages


def open_data(recipe: Recipe, folder: Path) -> AnyPrepared:
    """Open the prepared data of a recipe's task; DataError where they are not there, or damaged."""
    return open_prepared(folder) if isinstance(recipe, TranslationRecipe) else open_images(folder)


def steps_per_epoch(recipe: Recipe, prepared: AnyPrepared) -> float:
    """How many steps one pass over the recipe's prepared data takes."""
    match recipe, prepared:
        case TranslationRecipe(), Prepared():
            return plan_batches(recipe, prepared).steps_per_epoch
        case ClassificationRecipe(), PreparedImages():
            return plan_images(recipe, prepared).steps_per_epoch
    raise AssertionError("a recipe's data are of its own task")


def plan_batches(recipe: TranslationRecipe, prepared: Prepared) -> BatchPlan:
    """The recipe's slots, step by step."""
    return BatchPlan(
        prepared.train,
        [corpus.weight for corpus in recipe.data.train],
        batch_tokens=recipe.train.batch_tokens,
        slots=recipe.train.slots,
        max_tokens=recipe.data.max_tokens,
        seed=recipe.seed,
    )


def plan_images(recipe: ClassificationRecipe, prepared: PreparedImages) -> ImagePlan:
    """The recipe's slots, step by step."""
    return ImagePlan(
        len(prepared.train),
        batch_images=recipe.train.batch_images,
        slots=recipe.train.slots,
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
