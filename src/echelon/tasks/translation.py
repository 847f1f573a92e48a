"""Translation: parallel text, a Transformer, smoothed cross-entropy, sacreBLEU."""

from __future__ import annotations

from pathlib import Path

import torch

from echelon.data.batch_plan import plan_batches, step_tokens
from echelon.data.prepared import PairStore, Prepared, how_to_prepare_again, open_prepared
from echelon.data.run_data import find_run_data
from echelon.data.tokeniser import Tokeniser
from echelon.errors import DataError, RunError
from echelon.models.kernels.selection import choose_kernels
from echelon.models.transformer import Dropouts, Transformer
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import transformer_shape
from echelon.runfolder import RunFolder
from echelon.shapes.transformer import training_flops
from echelon.tasks.task import Slot, Split
from echelon.tasks.translation_loss import TranslationBatch, TranslationLoss, to_batch
from echelon.tasks.translation_scoring import TranslationScoring


class TranslationTask:
    """Implements `Task` on prepared parallel text."""

    unit = "tokens"

    def __init__(self, recipe: TranslationRecipe, prepared: Prepared, device: torch.device) -> None:
        self._recipe = recipe
        self._prepared = prepared
        self._device = device
        self._tokeniser = Tokeniser.load(prepared.tokeniser_path)
        if self._tokeniser.size != prepared.manifest.vocabulary:
            raise DataError(
                f"{prepared.tokeniser_path} has {self._tokeniser.size} pieces, the data were made with "
                f"{prepared.manifest.vocabulary}; {how_to_prepare_again(prepared.folder)}"
            )
        self._plan = plan_batches(recipe, prepared)
        self._choice = choose_kernels(
            recipe.train.kernels, device, recipe.train.precision, recipe.model.activation
        )
        self.loss = TranslationLoss(recipe.train, self._choice, device)

    @classmethod
    def of_run(cls, recipe: TranslationRecipe, run: RunFolder, device: torch.device) -> TranslationTask:
        """The task on the data that `train` prepared for this run."""
        named = find_run_data(run)
        prepared = open_prepared(named.folder)
        named.check(prepared.key)
        return cls(recipe, prepared, device)

    @property
    def kernels(self) -> str:
        return self._choice.words

    @property
    def steps_per_epoch(self) -> float:
        return self._plan.steps_per_epoch

    def has_split(self, split: Split) -> bool:
        return split == "valid" or self._prepared.test is not None

    def model_files(self, run: RunFolder) -> list[Path]:
        return [run.tokeniser]

    def build_model(self) -> Transformer:
        return build_transformer(self._recipe, self._tokeniser.size)

    def slots(self, step: int) -> list[Slot]:
        return [Slot(plan, plan.target_tokens) for plan in self._plan.step(step - 1).slots]

    def step_flops(self, step: int) -> int:
        shape = transformer_shape(self._recipe.model, self._tokeniser.size)
        tokens = step_tokens(self._plan.step(step - 1), self._prepared.train)
        return training_flops(shape, tokens.times(self._recipe.train.passes))

    def load(self, slot: Slot) -> TranslationBatch:
        pairs = self._plan.load(slot.plan)
        return to_batch(pairs, self._tokeniser.size, self._prepared.folder, self._device)

    def scoring(self, split: Split, *, final: bool) -> TranslationScoring:
        return TranslationScoring(
            self._recipe,
            self._tokeniser,
            self.loss,
            self._device,
            self._store(split),
            self._count(split, final),
            final,
        )

    def _store(self, split: Split) -> PairStore:
        store = self._prepared.valid if split == "valid" else self._prepared.test
        if store is None:
            raise RunError(f"the recipe has no {split} set (data.{split}) to score; use --split valid")
        return store

    def _count(self, split: Split, final: bool) -> int:
        """How many sentences of a split are scored: the recipe's limit holds for scoring during training."""
        limit = self._recipe.evaluate.sentences
        size = len(self._store(split))
        return min(limit, size) if limit is not None and split == "valid" and not final else size


def build_transformer(recipe: TranslationRecipe, vocabulary: int) -> Transformer:
    """The recipe's model, newly initialised."""
    model = recipe.model
    dropouts = Dropouts(model.dropout, model.attention_dropout, model.activation_dropout)
    return Transformer(transformer_shape(model, vocabulary), dropouts, recomputes=recipe.train.recompute)
