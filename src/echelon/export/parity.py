"""Checks that an exported model computes what PyTorch computes, token by token on real sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from echelon.data.tokeniser import BOS, EOS
from echelon.errors import PackageError
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Transformer

TOLERANCES = {"float32": 1e-3, "int8": 3.0}
"""How far a token's log-probability may be from PyTorch's float32; int8 rounds every weight and activation."""
MEAN_TOLERANCES = {"float32": 1e-4, "int8": 0.15}

TokenPair = tuple[list[int], list[int]]


class Scorer(Protocol):
    """A model that can score given translations, and translate."""

    def score(self, pairs: Sequence[TokenPair]) -> list[list[float]]:
        """The log-probability of each target token; sources and targets end with the end of sentence."""
        ...

    def greedy(self, sources: Sequence[list[int]]) -> list[list[int]]:
        """Translations by greedy search, without end of sentence."""
        ...


@dataclass(frozen=True)
class Check:
    """How a written model compares with PyTorch's."""

    sentences: int
    largest_difference: float
    """The largest difference of a token's log-probability."""
    mean_difference: float
    equal_translations: int
    """Greedy translations that are the same to the token."""


def compare(
    written: Scorer,
    original: Scorer,
    sources: Sequence[list[int]],
    precision: str,
    show: Callable[[float, str], None] = lambda share, doing: None,
) -> Check:
    """Compare two models on sentences; PackageError if they differ by more than rounding explains."""
    show(0.0, f"translating {len(sources)} sentences with PyTorch")
    wanted = original.greedy(sources)
    pairs = [(source, [*target, EOS]) for source, target in zip(sources, wanted, strict=True)]
    show(0.25, "scoring them with PyTorch")
    ours = np.concatenate([np.array(scores) for scores in original.score(pairs)])
    show(0.5, "scoring them with the written model")
    theirs = np.concatenate([np.array(scores) for scores in written.score(pairs)])
    differences = np.abs(ours - theirs)
    show(0.75, "translating them with the written model")
    equal = sum(a == b for a, b in zip(wanted, written.greedy(sources), strict=True))
    check = Check(len(pairs), float(differences.max()), float(differences.mean()), equal)
    is_wrong = not (
        check.largest_difference <= TOLERANCES[precision]
        and check.mean_difference <= MEAN_TOLERANCES[precision]
    )
    if is_wrong:
        raise PackageError(
            f"the exported model does not compute what PyTorch computes: log-probabilities differ by up to "
            f"{check.largest_difference:.3g}, on average by {check.mean_difference:.3g}, on {check.sentences} "
            "sentences; nothing was written"
        )
    return check


class TorchScorer:
    """The PyTorch model in float32, the reference."""

    def __init__(self, model: Transformer) -> None:
        self._model = model

    @torch.inference_mode()
    def score(self, pairs: Sequence[TokenPair]) -> list[list[float]]:
        scores = []
        for source, target in pairs:
            read = Sequences.of([target])
            hidden_MD = self._model(Sequences.of([source]), shift_right(read, BOS))
            log_probabilities_MV = self._model.logits(hidden_MD).log_softmax(1)
            scores.append(log_probabilities_MV.gather(1, read.tokens[:, None])[:, 0].tolist())
        return scores

    def greedy(self, sources: Sequence[list[int]]) -> list[list[int]]:
        from echelon.models.beam_search import Search, beam_search

        with torch.inference_mode():
            found = beam_search(self._model, Sequences.of(sources), Search(beam=1))
        return [hypotheses[0].tokens for hypotheses in found]
