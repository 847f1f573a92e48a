"""Translations drawn at random, token by token, from what the model finds likely.

B  sentences still drawn    K  samples of a sentence    V  vocabulary    T  target tokens so far
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from echelon.models import incremental
from echelon.models.beam_search import Beams, Hypothesis, Search, force, forced_tokens
from echelon.models.sequences import Sequences
from echelon.models.transformer import Transformer


@dataclass(frozen=True)
class Sampling:
    """How to draw; `search` gives the lengths, the special tokens and, as `n_best`, the number of samples."""

    search: Search
    temperature: float = 1.0
    """What the logits are divided by: less than 1 makes likely tokens likelier."""
    top_k: int = 0
    """Draw among this many of the likeliest tokens; 0: among all."""


@torch.no_grad()
def sample(
    model: Transformer,
    source: Sequences,
    sampling: Sampling,
    generator: torch.Generator | None = None,
    prefixes: Sequence[Sequence[int]] = (),
) -> list[list[Hypothesis]]:
    """`n_best` samples of each source sentence, likeliest first."""
    search = sampling.search
    limits = search.max_lengths(source, prefixes)
    forced_BT = forced_tokens(prefixes, source.tokens.device)
    results: list[list[Hypothesis]] = [[] for _ in source.lengths]
    state = incremental.start(model, model.encode(source), search.n_best)
    tokens_BKT = source.tokens.new_full((len(source), search.n_best, 1), search.bos)
    beams = Beams(
        list(range(len(source))), tokens_BKT, torch.zeros(tokens_BKT.shape[:2]).to(tokens_BKT.device)
    )
    while beams.sentences:
        logits_BKV, state = incremental.step(model, state, beams.tokens_BKT[:, :, -1])
        force(logits_BKV, forced_BT, beams)
        drawn_BK, costs_BK = draw(logits_BKV, beams, sampling, generator)
        is_over_BK = beams.tokens_BKT[:, :, -1] == search.eos
        drawn_BK = drawn_BK.masked_fill(is_over_BK, search.eos)
        scores_BK = beams.scores_BK + costs_BK.masked_fill(is_over_BK, 0)
        beams = Beams(beams.sentences, torch.cat([beams.tokens_BKT, drawn_BK[:, :, None]], 2), scores_BK)
        kept = keep_unfinished(results, beams, limits, search)
        rows = torch.tensor(kept, dtype=torch.int64, device=tokens_BKT.device)
        own_BK = torch.arange(search.n_best, device=rows.device).expand(len(kept), -1)
        if len(kept) < len(beams.sentences):
            sentences = [beams.sentences[row] for row in kept]
            beams = Beams(sentences, beams.tokens_BKT[rows], beams.scores_BK[rows])
            state = incremental.select(state, rows, own_BK)
    return results


def draw(
    logits_BKV: Tensor, beams: Beams, sampling: Sampling, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """One more token for each sample, and its log-probability by the model as it is."""
    search = sampling.search
    log_probabilities_BKV = logits_BKV.log_softmax(2)
    logits_BKV[:, :, list(search.never)] = -math.inf
    if beams.length < search.min_length:
        logits_BKV[:, :, search.eos] = -math.inf
    if 0 < sampling.top_k < logits_BKV.shape[2]:
        least_BK1 = logits_BKV.topk(sampling.top_k, dim=2).values[:, :, -1:]
        logits_BKV = logits_BKV.masked_fill(logits_BKV < least_BK1, -math.inf)
    shares_BKV = (logits_BKV / sampling.temperature).softmax(2)
    drawn_BK = torch.multinomial(shares_BKV.flatten(0, 1), 1, generator=generator).view(shares_BKV.shape[:2])
    return drawn_BK, log_probabilities_BKV.gather(2, drawn_BK[:, :, None])[:, :, 0]


def keep_unfinished(
    results: list[list[Hypothesis]], beams: Beams, limits: list[int], search: Search
) -> list[int]:
    """Hand out the sentences whose samples have all ended or are as long as they may be; the rows of the others."""
    kept = []
    has_ended_B = (beams.tokens_BKT[:, :, -1] == search.eos).all(1).tolist()
    for row, (sentence, has_ended) in enumerate(zip(beams.sentences, has_ended_B, strict=True)):
        assert sentence is not None  # those that are over have left
        if not has_ended and beams.length < limits[sentence]:
            kept.append(row)
            continue
        samples = zip(beams.tokens_BKT[row, :, 1:].tolist(), beams.scores_BK[row].tolist(), strict=True)
        found = [as_hypothesis(tokens, score, search) for tokens, score in samples]
        results[sentence] = sorted(found, key=lambda hypothesis: -hypothesis.score)
    return kept


def as_hypothesis(tokens: list[int], score: float, search: Search) -> Hypothesis:
    """A sample without its end of sentence."""
    is_finished = search.eos in tokens
    end = tokens.index(search.eos) if is_finished else len(tokens)
    return Hypothesis(tokens[:end], score / search.penalty(end + is_finished), is_finished)
