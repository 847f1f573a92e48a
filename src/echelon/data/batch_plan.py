"""The batches that a recipe asks for on its prepared data, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from echelon.data.batches import BatchPlan, StepPlan
from echelon.data.images.batches import ImagePlan
from echelon.data.images.image_store import PreparedImages
from echelon.data.prepared import PairStore, Prepared
from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.recipe.tasks import find_task
from echelon.shapes.transformer import TokenCounts


class AnyPrepared(Protocol):
    """Prepared data of any task: a folder, and what says what is in it."""

    @property
    def folder(self) -> Path: ...

    @property
    def key(self) -> str:
        """What tells these data from others."""
        ...

    @property
    def manifest(self) -> Any:
        """A dataclass, for --json and for the task's own readers."""
        ...


class DataDeclaration(Protocol):
    """What a task says about its data."""

    def open_data(self, folder: Path) -> AnyPrepared: ...

    def steps_per_epoch(self, recipe: Recipe, prepared: AnyPrepared) -> float: ...


def open_data(recipe: Recipe, folder: Path) -> AnyPrepared:
    """Open the prepared data of a recipe's task; DataError if they are missing or damaged."""
    task: DataDeclaration = find_task(recipe.task)
    return task.open_data(folder)


def steps_per_epoch(recipe: Recipe, prepared: AnyPrepared) -> float:
    """How many steps one pass over the recipe's prepared data takes."""
    task: DataDeclaration = find_task(recipe.task)
    return task.steps_per_epoch(recipe, prepared)


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
    """The token counts behind a step's FLOPs, from the real lengths."""
    lengths: list[tuple[int, int]] = []
    for slot in step.slots:
        store = stores[slot.corpus]
        sources, targets = store.source_lengths[slot.pairs], store.target_lengths[slot.pairs]
        lengths += zip(sources.tolist(), targets.tolist(), strict=True)
    return TokenCounts.of(lengths)
