from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from echelon.models import incremental
from echelon.models.beam_search import Hypothesis, Search, beam_search, is_over, keep_best
from echelon.models.sequences import Sequences
from echelon.models.transformer import Transformer
from echelon.shapes.transformer import TransformerShape

BOS, EOS = 2, 1
SOURCES = [[5, 6, 7, 8, 1], [4, 1], [1], [9, 8, 7, 6, 5, 4, 9, 1], [5, 5, 5, 1]]


def make_model(vocabulary: int = 12, seed: int = 0, tied: bool = False, **options: object) -> Transformer:
    """A model with opinions, some of whose hypotheses end early, some late and some not at all."""
    torch.manual_seed(seed)
    shape = TransformerShape(vocabulary, d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=2)
    model = Transformer(replace(shape, tied=tied, **options))  # type: ignore[arg-type]
    nn.init.normal_(model.embeddings.output_VD, std=0.6)
    with torch.no_grad():
        model.embeddings.output_VD[EOS] *= 4
    return model.eval()


def log_probabilities(model: Transformer, source: list[int], tokens: list[int]) -> Tensor:
    """Of what follows bos + tokens, by the whole decoder."""
    hidden = model(Sequences.of([source]), Sequences.of([[BOS, *tokens]]))
    return model.logits(hidden)[-1].log_softmax(0)


def score_of(model: Transformer, source: list[int], tokens: list[int]) -> float:
    """The log-probability of the tokens, one by one."""
    return sum(log_probabilities(model, source, tokens[:i])[tokens[i]].item() for i in range(len(tokens)))


def slow_beam_search(model: Transformer, source: list[int], search: Search) -> list[Hypothesis]:
    """The same search without batch, cache or tensors: sorted lists, one sentence, one prefix at a time."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    limit = search.max_length(len(source))
    for length in range(1, limit + 1):
        candidates = []
        for score, tokens in live:
            for token, log_probability in enumerate(log_probabilities(model, source, tokens).tolist()):
                is_too_early = token == EOS and len(tokens) < search.min_length
                if token not in search.never and not is_too_early:
                    candidates.append((score + log_probability, [*tokens, token]))
        candidates.sort(key=lambda candidate: -candidate[0])
        for score, tokens in candidates[: search.beam]:
            if tokens[-1] == EOS:
                finished.append(Hypothesis(tokens[:-1], score / penalty(length, search), True))
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        live = [candidate for candidate in candidates if candidate[1][-1] != EOS][: search.beam]
        if len(finished) >= search.beam:
            break
        enough = len(finished) >= search.n_best
        bound = live[0][0] / max(penalty(length + 1, search), penalty(limit, search))
        if enough and (search.beam == 1 or finished[search.n_best - 1].score >= bound):
            break
    cut_off = [Hypothesis(tokens, score / penalty(limit, search), False) for score, tokens in live]
    return (finished + cut_off)[: search.n_best]


def penalty(length: int, search: Search) -> float:
    return float(((5 + length) / 6) ** search.length_penalty)


def assert_same(found: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.tokens for h in found] == [h.tokens for h in expected]
    assert [h.is_finished for h in found] == [h.is_finished for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5, -0.5])
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (2, 1), (4, 4), (5, 2)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_search_equals_a_slow_one(beam: int, n_best: int, alpha: float, seed: int) -> None:
    model = make_model(seed=seed)
    search = Search(beam, n_best, alpha, max_length_factor=1, max_length_extra=6)

    found = beam_search(model, Sequences.of(SOURCES), search)

    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert_same(hypotheses, slow_beam_search(model, source, search))


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_wide_enough_finds_the_best_of_all(alpha: float) -> None:
    limit, words = 4, [4, 5, 6]
    model = make_model(vocabulary=7)
    search = Search(
        beam=len(words) ** limit, n_best=5, length_penalty=alpha, max_length_factor=0, max_length_extra=limit
    )

    found = beam_search(model, Sequences.of(SOURCES[1:3]), search)

    for source, hypotheses in zip(SOURCES[1:3], found, strict=True):
        every = []
        for tokens in (list(t) for length in range(limit) for t in product(words, repeat=length)):
            ended = [*tokens, EOS]
            score = score_of(model, source, ended) / penalty(len(ended), search)
            every.append(Hypothesis(tokens, score, True))
        assert_same(hypotheses, sorted(every, key=lambda h: -h.score)[:5])


def test_greedy_search_takes_the_likeliest_token_each_time() -> None:
    model = make_model(seed=3)
    search = Search(beam=1, max_length_factor=0, max_length_extra=15)

    found = beam_search(model, Sequences.of(SOURCES), search)

    for source, (hypothesis,) in zip(SOURCES, found, strict=True):
        tokens: list[int] = []
        while len(tokens) < 15 and EOS not in tokens:
            scores = log_probabilities(model, source, tokens)
            scores[[0, 2, 3]] = -math.inf
            tokens.append(int(scores.argmax()))
        assert hypothesis.tokens == [token for token in tokens if token != EOS]
        assert hypothesis.is_finished == (EOS in tokens)


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_gives_what_each_sentence_gives_alone(seed: int) -> None:
    model = make_model(seed=seed)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 12, (20,), generator=generator).tolist()
    sources = [[*torch.randint(4, 12, (length,), generator=generator).tolist(), 1] for length in lengths]
    search = Search(beam=4, n_best=3)

    together = beam_search(model, Sequences.of(sources), search)

    for source, hypotheses in zip(sources, together, strict=True):
        (alone,) = beam_search(model, Sequences.of([source]), search)
        assert_same(hypotheses, alone)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_step_equals_the_whole_decoder(norm: str, tied: bool) -> None:
    model = make_model(norm=norm, tied=tied, attention_biases=True)
    source = Sequences.of(SOURCES)
    hypotheses, length = 3, incremental.ROOM + 5
    tokens_BKT = torch.randint(0, 12, (len(source), hypotheses, length))

    state = incremental.start(model, model.encode(source), hypotheses)
    steps = []
    for t in range(length):
        logits_BKV, state = incremental.step(model, state, tokens_BKT[:, :, t])
        steps.append(logits_BKV)

    for k in range(hypotheses):
        whole = model.logits(model(source, Sequences.of(tokens_BKT[:, k].tolist())))
        torch.testing.assert_close(torch.stack(steps, 2)[:, k].flatten(0, 1), whole, rtol=1e-4, atol=1e-4)


def test_selected_hypotheses_go_on_from_their_own_past() -> None:
    model = make_model()
    source = Sequences.of(SOURCES[:3])
    tokens_BKT = torch.randint(4, 12, (3, 2, 4))
    state = incremental.start(model, model.encode(source), 2)
    for t in range(3):
        _, state = incremental.step(model, state, tokens_BKT[:, :, t])

    kept, beams = torch.tensor([2, 0]), torch.tensor([[1, 1], [1, 0]])
    chosen_BKT = tokens_BKT[kept[:, None], beams]
    logits_BKV, _ = incremental.step(model, incremental.select(state, kept, beams), chosen_BKT[:, :, 3])

    for row, sentence in enumerate(kept.tolist()):
        for k in range(2):
            tokens = Sequences.of([chosen_BKT[row, k].tolist()])
            expected = model.logits(model(Sequences.of([SOURCES[sentence]]), tokens))[-1]
            torch.testing.assert_close(logits_BKV[row, k], expected, rtol=1e-4, atol=1e-4)


def test_special_tokens_are_never_generated() -> None:
    model = make_model()
    with torch.no_grad():  # a model that would say nothing else
        model.embeddings.output_VD[[0, 2, 3]] *= 40

    found = beam_search(model, Sequences.of(SOURCES), Search(beam=4, n_best=4))

    assert not {0, 1, 2, 3} & {token for hypotheses in found for h in hypotheses for token in h.tokens}


def test_a_search_without_end_stops_at_the_greatest_length() -> None:
    model = make_model()
    search = Search(beam=3, n_best=3, max_length_factor=2, max_length_extra=1, never=(0, 1, 2, 3))

    found = beam_search(model, Sequences.of(SOURCES), search)

    for source, hypotheses in zip(SOURCES, found, strict=True):
        assert [len(h.tokens) for h in hypotheses] == [2 * len(source) + 1] * 3
        assert not any(h.is_finished for h in hypotheses)
        assert sorted((h.score for h in hypotheses), reverse=True) == [h.score for h in hypotheses]


def test_no_hypothesis_is_shorter_than_the_least_length() -> None:
    model = make_model()

    shortest = [min(len(h.tokens) for h in hypotheses) for hypotheses in search_with(model, min_length=0)]
    longer = [min(len(h.tokens) for h in hypotheses) for hypotheses in search_with(model, min_length=6)]

    assert min(shortest) < 6 <= min(longer)


def search_with(model: Transformer, min_length: int) -> list[list[Hypothesis]]:
    return beam_search(model, Sequences.of(SOURCES), Search(beam=4, n_best=4, min_length=min_length))


def test_the_best_finished_hypotheses_are_kept_in_order() -> None:
    kept: list[Hypothesis] = []

    for score in (-3.0, -1.0, -4.0, -2.0):
        keep_best(kept, Hypothesis([5], score, is_finished=True), count=3)

    assert [hypothesis.score for hypothesis in kept] == [-1, -2, -3]


def test_greedy_search_is_over_with_the_first_end() -> None:
    found = [Hypothesis([5, 6], score=-1.0, is_finished=True)]

    assert is_over(found, -1.1, length=2, limit=13, search=Search(beam=1, length_penalty=1.0))
    assert not is_over(found, -1.1, length=2, limit=13, search=Search(beam=2, length_penalty=1.0))


def test_search_goes_on_while_a_longer_hypothesis_could_win() -> None:
    search = Search(beam=2, length_penalty=1.0)
    found = [Hypothesis([5, 6], score=-1.0, is_finished=True)]
    at_limit = search.penalty(13)  # 3: an unfinished score of -2.9 may become -2.9 / 3

    assert not is_over(found, -0.99 * at_limit, length=2, limit=13, search=search)
    assert is_over(found, -1.01 * at_limit, length=2, limit=13, search=search)
    assert is_over(found, -0.1, length=13, limit=13, search=search)
    assert not is_over([], -100.0, length=2, limit=13, search=search)
    assert is_over([], -math.inf, length=2, limit=13, search=search)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_search_works_under_autocast(dtype: torch.dtype) -> None:
    model = make_model()

    with torch.autocast("cpu", dtype=dtype):
        found = beam_search(model, Sequences.of(SOURCES), Search(beam=4))

    for source, (best,) in zip(SOURCES, found, strict=True):
        tokens = [*best.tokens, EOS] if best.is_finished else best.tokens
        exact = score_of(model, source, tokens) / penalty(len(tokens), Search())
        assert best.score == pytest.approx(exact, rel=0.1)


def test_more_hypotheses_than_the_beam_are_refused() -> None:
    with pytest.raises(ValueError, match="n_best = 5"):
        Search(beam=4, n_best=5)


def test_hypotheses_begin_with_their_prefix_which_costs_nothing() -> None:
    model, prefixes = make_model(), [[5, 6], [], [7], [8, 9, 10], []]
    search = Search(beam=3, n_best=2)
    free = beam_search(model, Sequences.of(SOURCES), search)
    found = beam_search(model, Sequences.of(SOURCES), search, prefixes)
    for prefix, hypotheses, own in zip(prefixes, found, free, strict=True):
        assert all(hypothesis.tokens[: len(prefix)] == prefix for hypothesis in hypotheses)
        if not prefix:
            assert_same(hypotheses, own)
    (best, _), source, prefix = found[3], SOURCES[3], prefixes[3]
    tokens = [*best.tokens, EOS] if best.is_finished else best.tokens
    cost = score_of(model, source, tokens) - score_of(model, source, prefix)
    assert best.score == pytest.approx(cost / penalty(len(tokens), search), abs=1e-3)
