"""From sentences to sentences: text in, text out, in order, whatever the batches are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from echelon.data.batches import length_sorted_batches
from echelon.data.long_lines import join_parts, parts_of
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.models.beam_search import Search, beam_search
from echelon.models.low_precision import in_low_precision
from echelon.models.sequences import Sequences
from echelon.models.transformer import Transformer
from echelon.recipe.schema import TranslationRecipe

_BATCH_TOKENS = 2048


def recipe_search(recipe: TranslationRecipe, final: bool) -> Search:
    """The recipe's search: quick during training, thorough at the end."""
    evaluate = recipe.evaluate
    beam = evaluate.beam if final else evaluate.valid_beam
    return Search(beam=beam, length_penalty=evaluate.length_penalty)


@dataclass(frozen=True)
class LineTranslator:
    """A model in evaluation mode, its tokeniser, and how to search."""

    model: Transformer
    tokeniser: Tokeniser
    search: Search
    device: torch.device
    longest: int
    """Tokens, EOS included, above which a line is translated in parts."""

    def translate(
        self, lines: Sequence[str], on_batch: Callable[[float], None] = lambda _: None
    ) -> list[str]:
        """Translate normalised lines; an empty line stays empty.

        `on_batch` is called before every batch with the share of the tokens that are translated.
        """
        parts = [parts_of(line, self.longest, self.tokeniser.count) for line in lines]
        found = iter(self._translate([part for line in parts for part in line], on_batch))
        return [join_parts([next(found) for _ in line]) for line in parts]

    def _translate(self, parts: list[str], on_batch: Callable[[float], None]) -> list[str]:
        results = [""] * len(parts)
        if not parts:
            return results
        tokens = [[*ids, EOS] for ids in self.tokeniser.encode(parts)]
        model, lengths = self._model_for_decoding(), np.array([len(ids) for ids in tokens])
        done = 0
        for indices in length_sorted_batches(lengths, _BATCH_TOKENS):
            on_batch(done / int(lengths.sum()))
            done += int(lengths[indices].sum())
            batch = [tokens[index] for index in indices.tolist()]
            for index, text in zip(indices.tolist(), self._translate_batch(model, batch), strict=True):
                results[index] = text
        return results

    def _model_for_decoding(self) -> Transformer:
        kind = self.device.type
        if not torch.is_autocast_enabled(kind):
            return self.model
        return in_low_precision(self.model, torch.get_autocast_dtype(kind))

    def _translate_batch(self, model: Transformer, batch: list[list[int]]) -> list[str]:
        best = [found[0] for found in beam_search(model, Sequences.of(batch, self.device), self.search)]
        return self.tokeniser.decode([hypothesis.tokens for hypothesis in best])
