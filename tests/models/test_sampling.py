from __future__ import annotations

from collections import Counter

import pytest
import torch

from echelon.models.beam_search import Search, beam_search
from echelon.models.sampling import Sampling, sample
from echelon.models.sequences import Sequences
from tests.models.test_beam_search import SOURCES, log_probabilities, make_model


def test_first_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    model, source = make_model(), SOURCES[0]
    search = Search(beam=1000, n_best=1000, max_length_factor=0, max_length_extra=1, never=())
    (found,) = sample(model, Sequences.of([source]), Sampling(search), torch.Generator().manual_seed(1))
    counts = Counter(hypothesis.tokens[0] if hypothesis.tokens else 1 for hypothesis in found)
    shares = log_probabilities(model, source, []).exp().tolist()
    for token, share in enumerate(shares):
        assert counts[token] / 1000 == pytest.approx(share, abs=0.06)


def test_one_likeliest_token_is_greedy_search() -> None:
    model, source = make_model(), Sequences.of(SOURCES)
    greedy = beam_search(model, source, Search(beam=1))
    drawn = sample(model, source, Sampling(Search(beam=1), top_k=1))
    assert [found[0].tokens for found in drawn] == [found[0].tokens for found in greedy]
    assert [found[0].score for found in drawn] == pytest.approx(
        [found[0].score for found in greedy], abs=1e-4
    )


def test_a_low_temperature_is_cautious() -> None:
    model, source = make_model(), Sequences.of(SOURCES)
    greedy = beam_search(model, source, Search(beam=1))
    drawn = sample(model, source, Sampling(Search(beam=1), temperature=0.01))
    assert [found[0].tokens for found in drawn] == [found[0].tokens for found in greedy]


def test_samples_begin_with_the_prefix() -> None:
    model, source = make_model(), Sequences.of(SOURCES)
    prefixes = [[5], [], [6, 7], [], [8]]
    drawn = sample(model, source, Sampling(Search(beam=3, n_best=3)), prefixes=prefixes)
    for prefix, found in zip(prefixes, drawn, strict=True):
        assert all(hypothesis.tokens[: len(prefix)] == prefix for hypothesis in found)
