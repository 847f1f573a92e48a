"""Translation: parallel text, a Transformer, smoothed cross-entropy, sacreBLEU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from echelon.data.batches import PackedPairs, length_sorted_batches, packed
from echelon.data.planning import plan_batches, step_tokens
from echelon.data.prepared import PairStore, Prepared, damaged, how_to_prepare_again, open_prepared
from echelon.data.tokeniser import BOS, Tokeniser
from echelon.errors import DataError, RunError
from echelon.models import fast
from echelon.models.kernels.choice import choose_kernels
from echelon.models.loss import SummedLoss, summed_loss, twin_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Dropouts, Transformer
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import transformer_shape
from echelon.runfolder import RunFolder
from echelon.shapes.transformer import training_flops
from echelon.tasks.run_data import find_run_data
from echelon.tasks.scoring import score_translations
from echelon.tasks.task import Scores, Slot, Split
from echelon.tasks.translator import Translator, recipe_search

_SCORING_TOKENS = 4096


@dataclass(frozen=True)
class TranslationBatch:
    """Packed sentences; every target ends with the end-of-sentence token."""

    source: Sequences
    target: Sequences


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
        self._choice = choose_kernels(recipe.train.kernels, device, recipe.train.precision)

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
        return self._as_batch(self._plan.load(slot.plan))

    def loss(self, model: nn.Module, batch: TranslationBatch) -> SummedLoss:
        assert isinstance(model, Transformer)
        train = self._recipe.train
        smoothing, agreement = (train.label_smoothing, train.r_drop) if model.training else (0.0, 0.0)
        source, shifted = batch.source, shift_right(batch.target, BOS)
        if agreement:
            source, shifted = source.twice(), shifted.twice()
        kernels = self._choice.kernels if fast.can_run(model, self._device) else None
        run = model if kernels is None else partial(fast.hidden_states, kernels, model)
        hidden_MD = run(source, shifted)
        output_VD, targets_M = model.embeddings.output_VD, batch.target.tokens
        if agreement:
            return twin_loss(hidden_MD, output_VD, targets_M, smoothing, kernels, agreement=agreement)
        return summed_loss(hidden_MD, output_VD, targets_M, smoothing, kernels)

    def score_share(
        self,
        model: nn.Module,
        split: Split,
        *,
        rank: int,
        size: int,
        final: bool,
        on_batch: Callable[[], None],
    ) -> dict[str, Any]:
        """Every size-th batch of sentences, sorted by length: loss per batch, translation per sentence."""
        assert isinstance(model, Transformer)
        store, count = self._store(split), self._count(split, final)
        pair_lengths = np.maximum(store.source_lengths, store.target_lengths)[:count]
        losses = []
        for number, indices in enumerate(length_sorted_batches(pair_lengths, _SCORING_TOKENS)):
            if number % size == rank:
                on_batch()
                batch = self._as_batch(packed(store, indices))
                losses.append([number, self.loss(model, batch).nll.item(), len(batch.target.tokens)])
        lines = store.source_lines()[:count]
        mine = _every_nth_by_length(store.source_lengths[:count], rank, size)
        translator = Translator(model, self._tokeniser, recipe_search(self._recipe, final), self._device)
        translations = translator.translate([lines[index] for index in mine], on_batch)
        outputs = [[index, translation.text] for index, translation in zip(mine, translations, strict=True)]
        return {"losses": losses, "outputs": outputs}

    def combine_scores(self, shares: Sequence[Any], split: Split, *, final: bool) -> Scores:
        store, count = self._store(split), self._count(split, final)
        losses = sorted(entry for share in shares for entry in share["losses"])
        outputs = [text for _, text in sorted(entry for share in shares for entry in share["outputs"])]
        loss = math.fsum(nll for _, nll, _ in losses) / sum(targets for _, _, targets in losses)
        references = store.reference_lines()[:count]
        metrics, signature = score_translations(outputs, references, self._recipe.evaluate.tokenisation)
        metrics |= {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        samples = self._samples(store.source_lines()[:count], references, outputs)
        return Scores(metrics, signature, outputs, samples)

    def _samples(self, sources: list[str], references: list[str], outputs: list[str]) -> list[dict[str, str]]:
        """The same few sentences every time, spread over the set."""
        count = min(self._recipe.evaluate.samples, len(sources))
        chosen = [number * len(sources) // count for number in range(count)]
        return [{"source": sources[i], "reference": references[i], "output": outputs[i]} for i in chosen]

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

    def _as_batch(self, pairs: PackedPairs) -> TranslationBatch:
        largest = max(int(pairs.source.max()), int(pairs.target.max()))
        if largest >= self._tokeniser.size:  # the kernels would read and write beyond their tables
            raise damaged(
                self._prepared.folder,
                "a shard",
                f"has a token {largest}, and there are {self._tokeniser.size} pieces",
            )

        def sequences(tokens: np.ndarray[Any, Any], offsets: np.ndarray[Any, Any]) -> Sequences:
            lengths = tuple(np.diff(offsets).tolist())
            packed_sequences = Sequences(torch.from_numpy(tokens), torch.from_numpy(offsets), lengths)
            return packed_sequences.to(self._device, non_blocking=True)

        return TranslationBatch(
            source=sequences(pairs.source, pairs.source_offsets),
            target=sequences(pairs.target, pairs.target_offsets),
        )


def build_transformer(recipe: TranslationRecipe, vocabulary: int) -> Transformer:
    """The recipe's model, newly initialised."""
    model = recipe.model
    dropouts = Dropouts(model.dropout, model.attention_dropout, model.activation_dropout)
    return Transformer(transformer_shape(model, vocabulary), dropouts, recomputes=recipe.train.recompute)


def _every_nth_by_length(lengths: np.ndarray[Any, Any], rank: int, size: int) -> list[int]:
    """This worker's sentences: dealt out in order of length, so that all workers have the same work."""
    order: list[int] = np.argsort(lengths, kind="stable").tolist()
    return order[rank::size]
