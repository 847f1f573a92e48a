"""Beam search over a batch of sentences, finished ones leaving it.

B  sentences still searched    K  hypotheses of a sentence    C  candidates of a sentence, 2 K
V  vocabulary                  T  target tokens so far
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from echelon.models import incremental
from echelon.models.sequences import Sequences
from echelon.models.transformer import Transformer

KEPT_SHARE = 0.75
"""Below this share of sentences still searched, finished ones are dropped, which copies the cache."""


@dataclass(frozen=True)
class Search:
    """How to search. A length counts the generated tokens, the end-of-sentence token included."""

    beam: int = 4
    """Hypotheses followed at a time; 1 is greedy search, which ends with the first end of sentence."""
    n_best: int = 1
    """Hypotheses wanted per sentence, at most `beam`."""
    length_penalty: float = 0.6
    """Exponent of the GNMT length penalty ((5 + length) / 6) ** exponent; 0 compares plain probabilities."""
    max_length_factor: float = 1.5
    max_length_extra: int = 20
    """A translation is at most `factor * source length + extra` tokens longer than its prefix."""
    longest: int | None = None
    """In place of these: how long a translation is at most, its prefix included."""
    min_length: int = 0
    """No end of sentence before this many other tokens."""
    bos: int = 2
    eos: int = 1
    never: tuple[int, ...] = (0, 2, 3)
    """Tokens that are not generated: padding, beginning of sentence, unknown."""

    def __post_init__(self) -> None:
        if not 1 <= self.n_best <= self.beam:
            raise ValueError(f"n_best = {self.n_best} must be from 1 to beam = {self.beam}")

    def max_length(self, source_length: int, prefix_length: int = 0) -> int:
        by_source = math.floor(self.max_length_factor * source_length + self.max_length_extra)
        return max(1, self.min_length, by_source + prefix_length if self.longest is None else self.longest)

    def max_lengths(self, source: Sequences, prefixes: Sequence[Sequence[int]]) -> list[int]:
        """Of each sentence; there are prefixes for all or for none."""
        begun = [len(prefix) for prefix in prefixes] or [0] * len(source)
        return [self.max_length(*lengths) for lengths in zip(source.lengths, begun, strict=True)]

    def penalty(self, length: int) -> float:
        return math.pow((5 + length) / 6, self.length_penalty)


@dataclass(frozen=True)
class Hypothesis:
    tokens: list[int]
    """Without beginning and end of sentence."""
    score: float
    """Log-probability, divided by the length penalty."""
    is_finished: bool
    """Whether it ended by itself, not at the greatest length."""


@dataclass(frozen=True)
class Beams:
    """The sentences still searched and their unfinished hypotheses, best first."""

    sentences: list[int | None]
    """Which of the source's sentences they are; None: one that is over and has not left yet."""
    tokens_BKT: Tensor
    """All tokens so far, from the beginning of sentence on."""
    scores_BK: Tensor
    """Log-probabilities; -inf if a sentence has fewer than K hypotheses."""

    @property
    def length(self) -> int:
        return self.tokens_BKT.shape[2] - 1


@dataclass(frozen=True)
class Candidates:
    """The best continuations of each sentence's hypotheses, best first."""

    scores_BC: Tensor
    beams_BC: Tensor
    """The hypothesis each continues."""
    tokens_BC: Tensor
    """The token it adds."""


@torch.no_grad()
def beam_search(
    model: Transformer, source: Sequences, search: Search, prefixes: Sequence[Sequence[int]] = ()
) -> list[list[Hypothesis]]:
    """The `n_best` best translations of each source sentence, best first; at least one each.

    Hypotheses that ended by themselves come before those cut off at the greatest length. A sentence's translation
    begins with its prefix, which scores nothing. Use the model in evaluation mode, under autocast for speed.
    """
    assert not model.training, "beam search needs model.eval(): dropout would spoil it"
    results: list[list[Hypothesis]] = [[] for _ in source.lengths]
    limits = search.max_lengths(source, prefixes)
    forced_BT = forced_tokens(prefixes, source.tokens.device)
    state = incremental.start(model, model.encode(source), search.beam)
    beams = first_beams(source, search)
    while any(sentence is not None for sentence in beams.sentences):
        logits_BKV, state = incremental.step(model, state, beams.tokens_BKT[:, :, -1])
        force(logits_BKV, forced_BT, beams)
        candidates = best_candidates(logits_BKV, beams, search)
        for sentence, hypothesis in finished_hypotheses(candidates, beams, search):
            keep_best(results[sentence], hypothesis, search.beam)
        beams, parents_BK = continue_beams(candidates, beams, search)
        beams = fill_up_what_is_over(results, beams, limits, search)
        beams, state = drop_what_is_over(beams, state, parents_BK)
    return [found[: search.n_best] for found in results]


def first_beams(source: Sequences, search: Search) -> Beams:
    """One hypothesis per sentence, with only its beginning, and K - 1 impossible ones."""
    tokens_BKT = source.tokens.new_full((len(source), search.beam, 1), search.bos)
    scores_BK = torch.full((len(source), search.beam), -math.inf, device=tokens_BKT.device)
    scores_BK[:, 0] = 0
    return Beams(list(range(len(source))), tokens_BKT, scores_BK)


def forced_tokens(prefixes: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """The prefixes as a rectangle, -1 after the end of each; without columns if there are none."""
    longest = max((len(prefix) for prefix in prefixes), default=0)
    rows = [[*prefix, *[-1] * (longest - len(prefix))] for prefix in prefixes]
    return torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), longest)


def force(logits_BKV: Tensor, forced_BT: Tensor, beams: Beams) -> None:
    """Leave the sentences that are within their prefix no choice but its next token, at no cost."""
    if beams.length >= forced_BT.shape[1]:
        return
    next_B = forced_BT[[sentence or 0 for sentence in beams.sentences], beams.length]
    rows = (next_B >= 0).nonzero().flatten()
    logits_BKV[rows] = -math.inf
    logits_BKV[rows, :, next_B[rows]] = 0


def best_candidates(logits_BKV: Tensor, beams: Beams, search: Search) -> Candidates:
    """The 2 K best continuations: at most K are ends of sentence, so at least K go on. Spoils the logits."""
    log_sums_BK1 = logits_BKV.logsumexp(2, keepdim=True)
    logits_BKV[:, :, list(search.never)] = -math.inf
    if beams.length < search.min_length:
        logits_BKV[:, :, search.eos] = -math.inf
    count = 2 * search.beam
    logits_BKC, tokens_BKC = logits_BKV.topk(min(count, logits_BKV.shape[2]))
    scores_BKC = beams.scores_BK[:, :, None] + (logits_BKC - log_sums_BK1)
    scores_BC, picks_BC = scores_BKC.flatten(1).topk(count)
    beams_BC = picks_BC // scores_BKC.shape[2]
    return Candidates(scores_BC, beams_BC, tokens_BKC.flatten(1).gather(1, picks_BC))


def finished_hypotheses(candidates: Candidates, beams: Beams, search: Search) -> list[tuple[int, Hypothesis]]:
    """Candidates that end their sentence and are among its K best, each with the sentence it translates."""
    is_end_BC = (candidates.tokens_BC == search.eos) & candidates.scores_BC.isfinite()
    rows, ranks = is_end_BC[:, : search.beam].nonzero(as_tuple=True)
    tokens = beams.tokens_BKT[rows, candidates.beams_BC[rows, ranks], 1:].tolist()
    scores = (candidates.scores_BC[rows, ranks] / search.penalty(beams.length + 1)).tolist()
    return [
        (sentence, Hypothesis(tokens[i], scores[i], is_finished=True))
        for i, row in enumerate(rows.tolist())
        if (sentence := beams.sentences[row]) is not None
    ]


def keep_best(hypotheses: list[Hypothesis], new: Hypothesis, count: int) -> None:
    """Put a hypothesis in its place among the `count` best."""
    hypotheses.append(new)
    hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
    del hypotheses[count:]


def continue_beams(candidates: Candidates, beams: Beams, search: Search) -> tuple[Beams, Tensor]:
    """The K best candidates that go on, and which hypothesis each continues."""
    is_end_BC = candidates.tokens_BC == search.eos
    order_BK = is_end_BC.to(torch.int8).argsort(dim=1, stable=True)[:, : search.beam]
    parents_BK = candidates.beams_BC.gather(1, order_BK)
    before_BKT = beams.tokens_BKT.gather(1, parents_BK[:, :, None].expand_as(beams.tokens_BKT))
    newest_BK = candidates.tokens_BC.gather(1, order_BK)
    tokens_BKT = torch.cat([before_BKT, newest_BK[:, :, None]], dim=2)
    return Beams(beams.sentences, tokens_BKT, candidates.scores_BC.gather(1, order_BK)), parents_BK


def fill_up_what_is_over(
    results: list[list[Hypothesis]], beams: Beams, limits: list[int], search: Search
) -> Beams:
    """Give sentences whose search is over what they still lack, and mark them."""
    sentences: list[int | None] = list(beams.sentences)
    best_scores = beams.scores_BK[:, 0].tolist()
    for row, sentence in enumerate(beams.sentences):
        if sentence is None:
            continue
        found = results[sentence]
        if is_over(found, best_scores[row], beams.length, limits[sentence], search):
            found += unfinished_hypotheses(beams, row, search)[: max(0, search.n_best - len(found))]
            sentences[row] = None
    return replace(beams, sentences=sentences)


def is_over(found: list[Hypothesis], best_score: float, length: int, limit: int, search: Search) -> bool:
    """Whether as many hypotheses as are followed have ended, or no other can still change what was found."""
    if length >= limit or best_score == -math.inf or len(found) >= search.beam:
        return True
    if len(found) < search.n_best:
        return False
    # A log-probability only falls as the hypothesis grows; at best it stays and is divided by the most.
    bound = best_score / max(search.penalty(length + 1), search.penalty(limit))
    return found[search.n_best - 1].score >= bound


def unfinished_hypotheses(beams: Beams, row: int, search: Search) -> list[Hypothesis]:
    """What a sentence has when it was cut off, best first."""
    return [
        Hypothesis(tokens, score / search.penalty(beams.length), is_finished=False)
        for tokens, score in zip(
            beams.tokens_BKT[row, :, 1:].tolist(), beams.scores_BK[row].tolist(), strict=True
        )
        if score != -math.inf  # one that is not a number stays: there is always a translation
    ]


def drop_what_is_over(
    beams: Beams, state: incremental.State, parents_BK: Tensor
) -> tuple[Beams, incremental.State]:
    """Go on with the chosen hypotheses, without the sentences that are over once they are worth the copying."""
    kept = [row for row, sentence in enumerate(beams.sentences) if sentence is not None]
    if len(kept) > KEPT_SHARE * len(beams.sentences):
        return beams, incremental.select(state, None, parents_BK)
    rows = torch.tensor(kept, dtype=torch.int64, device=parents_BK.device)
    remaining = Beams([beams.sentences[row] for row in kept], beams.tokens_BKT[rows], beams.scores_BK[rows])
    return remaining, incremental.select(state, rows, parents_BK[rows])
