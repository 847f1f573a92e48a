"""Scoring translations of a set: loss, BLEU and chrF, in memory that does not depend on the longest line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import nn

from echelon.data.batches import length_sorted_batches, packed
from echelon.data.held_out import longer_sides, longest_part, longest_scored
from echelon.data.prepared import PairStore
from echelon.data.tokeniser import Tokeniser
from echelon.models.loss import SummedLoss
from echelon.models.transformer import Transformer
from echelon.recipe.schema import Tokenisation, TranslationRecipe
from echelon.tasks.line_translator import LineTranslator, recipe_search
from echelon.tasks.task import Scores
from echelon.tasks.translation_loss import TranslationBatch, to_batch

_SCORING_TOKENS = 4096
_LOSS_SHARE = 0.1
"""About how much of the time of a scoring its loss takes; the rest is translating."""


@dataclass(frozen=True)
class TranslationScoring:
    """Implements `Scoring` on encoded pairs: the first `count` of a store.

    A pair with a side of more than `longest_scored` tokens does not count in the loss. Lines longer than what the model
    is used to are translated in parts, as `translate` does, so that both give the same text.
    """

    recipe: TranslationRecipe
    tokeniser: Tokeniser
    loss: Callable[[nn.Module, TranslationBatch], SummedLoss]
    device: torch.device
    store: PairStore
    count: int
    final: bool
    """Whether to search thoroughly rather than quickly."""

    def share(
        self, model: nn.Module, *, rank: int, size: int, on_batch: Callable[[float], None]
    ) -> dict[str, Any]:
        """Every size-th batch of sentences, sorted by length: loss per batch, translation per sentence."""
        assert isinstance(model, Transformer)
        losses = self._share_of_losses(model, rank, size, lambda done: on_batch(_LOSS_SHARE * done))
        lines = self.store.source_lines()[: self.count]
        mine = _every_nth_by_length(self.store.source_lengths[: self.count], rank, size)
        translator = LineTranslator(
            model,
            self.tokeniser,
            recipe_search(self.recipe, self.final),
            self.device,
            longest_part(self.recipe),
        )
        translations = translator.translate(
            [lines[index] for index in mine], lambda done: on_batch(_LOSS_SHARE + (1 - _LOSS_SHARE) * done)
        )
        outputs = [[index, text] for index, text in zip(mine, translations, strict=True)]
        return {"losses": losses, "outputs": outputs}

    def _share_of_losses(
        self, model: nn.Module, rank: int, size: int, on_batch: Callable[[float], None]
    ) -> list[list[Any]]:
        """Score every `size`-th batch: its number, its loss and its targets."""
        lengths = longer_sides(self.store, self.count)
        counted = np.flatnonzero(lengths <= longest_scored(self.recipe.data))
        losses: list[list[Any]] = []
        done = 0
        for number, places in enumerate(length_sorted_batches(lengths[counted], _SCORING_TOKENS)):
            if number % size == rank:
                on_batch(done / len(counted))
                assert self.store.folder is not None
                pairs = packed(self.store, counted[places])
                batch = to_batch(pairs, self.tokeniser.size, self.store.folder, self.device)
                losses.append([number, self.loss(model, batch).nll.item(), len(batch.target.tokens)])
            done += len(places)
        return losses

    def combine(self, shares: Sequence[Any]) -> Scores:
        losses = sorted(entry for share in shares for entry in share["losses"])
        outputs = [text for _, text in sorted(entry for share in shares for entry in share["outputs"])]
        targets = sum(targets for _, _, targets in losses)
        loss = math.fsum(nll for _, nll, _ in losses) / targets if targets else math.nan
        references = self.store.reference_lines()[: self.count]
        metrics, signature = score_translations(outputs, references, self.recipe.evaluate.tokenisation)
        metrics |= {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        samples = self._samples(self.store.source_lines()[: self.count], references, outputs)
        return Scores(metrics, signature, outputs, references, samples, self._details())

    def _details(self) -> dict[str, Any]:
        limit = longest_scored(self.recipe.data)
        longer = int(np.count_nonzero(longer_sides(self.store, self.count) > limit))
        return {"left_out_of_loss": {"pairs": longer, "above_tokens": limit}} if longer else {}

    def _samples(self, sources: list[str], references: list[str], outputs: list[str]) -> list[dict[str, str]]:
        """The same few sentences every time, spread over the set."""
        count = min(self.recipe.evaluate.samples, len(sources))
        chosen = [number * len(sources) // count for number in range(count)]
        return [{"source": sources[i], "reference": references[i], "output": outputs[i]} for i in chosen]


def _every_nth_by_length(lengths: np.ndarray[Any, Any], rank: int, size: int) -> list[int]:
    """This worker's sentences: dealt out in order of length, so that all workers have the same work."""
    order: list[int] = np.argsort(lengths, kind="stable").tolist()
    return order[rank::size]


def score_translations(
    outputs: Sequence[str], references: Sequence[str], tokenisation: Tokenisation = "13a"
) -> tuple[dict[str, float], str]:
    """Corpus BLEU and chrF, cased, and BLEU's signature, which says how the text was tokenised for it.

    sacreBLEU warns if text looks tokenised already; with tokenisation "none" that is what is meant.
    """
    bleu, chrf = BLEU(tokenize=tokenisation, force=tokenisation == "none"), CHRF()
    metrics = {
        "bleu": float(bleu.corpus_score(list(outputs), [list(references)]).score),
        "chrf": float(chrf.corpus_score(list(outputs), [list(references)]).score),
    }
    return metrics, str(bleu.get_signature())
