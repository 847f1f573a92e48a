"""Tests of scores: sacreBLEU's own, and values that can be looked up."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Sequence
from statistics import fmean, stdev

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest, Result

from echelon.explain.significance import (
    RESAMPLES,
    agree,
    compare_classes,
    compare_seeds,
    compare_translations,
    group_size,
    mcnemar,
    seeds_needed,
    student_t,
)
from tests.explain.scored_runs import sentences, with_errors


def test_translations_are_compared_as_sacrebleu_does() -> None:
    references = sentences(60)
    systems: list[tuple[str, Sequence[str]]] = [
        ("one", with_errors(references, 0.2, 2)),
        ("two", with_errors(references, 0.3, 3)),
    ]
    found = compare_translations(systems[0][1], systems[1][1], references, trials=500)
    assert [each.metric for each in found] == ["bleu", "chrf"]
    for each, metric in zip(found, (BLEU(), CHRF()), strict=True):
        for test, kind, samples in (
            ("paired bootstrap", "bs", 1000),
            ("approximate randomisation", "ar", 500),
        ):
            _, expected = PairedTest(systems, {"metric": metric}, [references], kind, samples)()
            first, second = (
                result for each in expected.values() for result in each if isinstance(result, Result)
            )
            assert (each.first, each.second) == (first.score, second.score)
            assert each.p[test] == second.p_value
        assert each.low < each.size < each.high


def test_a_large_set_does_not_take_memory_for_every_sample() -> None:
    references = sentences(600)
    systems = with_errors(references, 0.2, 2), with_errors(references, 0.3, 3)
    tracemalloc.start()
    try:
        compare_translations(*systems, references, trials=100)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    all_samples = RESAMPLES * len(references) * 18 * 4  # chrF counts 18 things in every line
    assert peak < all_samples / 2


def test_a_real_difference_is_found_and_the_same_outputs_are_not_called_different() -> None:
    references = sentences(200)
    good, bad = with_errors(references, 0.1, 2), with_errors(references, 0.3, 3)
    for each in compare_translations(good, bad, references, trials=500):
        assert each.is_significant()
        assert each.high < 0
    for each in compare_translations(good, good, references, trials=500):
        assert not each.is_significant()
        assert (each.size, each.low, each.high) == (0, 0, 0)
        assert each.times_more_examples() is None


def test_a_set_is_said_to_be_too_small_by_the_power_of_the_test() -> None:
    """With a standard error as large as the difference, (1.960 + 0.842)^2 = 7.85 times as many lines are needed."""
    one = compare_seeds("bleu", [10.0, 10.0], [11.0, 11.0])
    assert one.times_more_examples() is None, "no spread, nothing to ask for"
    each = type(one)("bleu", 10, 11, 1 - 1.959964, 1 + 1.959964, {"paired bootstrap": 0.3})
    assert each.times_more_examples() == pytest.approx(7.849, abs=0.001)


@pytest.mark.parametrize(
    ("lost", "gained", "p"),
    [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 2 / 32), (1, 9, 22 / 1024), (3, 12, 0.03515625), (59, 121, 4.434e-6)],
)
def test_mcnemar_is_exact(lost: int, gained: int, p: float) -> None:
    """A fair coin's tails, counted: 3 of 15 or fewer have 576 of 32,768 sequences."""
    throws = lost + gained
    counted = 2 * sum(math.comb(throws, heads) for heads in range(min(lost, gained) + 1)) / 2**throws
    assert mcnemar(lost, gained) == pytest.approx(min(1.0, counted), rel=1e-9)
    assert mcnemar(gained, lost) == pytest.approx(p, rel=1e-3)


def test_classifiers_are_compared_by_what_only_one_of_them_knows() -> None:
    right = ["cat"] * 100
    one = ["cat"] * 80 + ["dog"] * 20
    two = ["cat"] * 77 + ["dog"] * 3 + ["cat"] * 12 + ["dog"] * 8
    found = compare_classes(one, two, right)
    assert (found.metric, found.first) == ("top1", 80)
    assert found.second == pytest.approx(89)
    assert found.p["McNemar"] == pytest.approx(0.03515625)
    # Bonett and Price: differences of (4/102, 13/102) with z = 1.96.
    half = 1.959964 * math.sqrt((17 / 102 - (9 / 102) ** 2) / 102)
    assert found.low == pytest.approx(100 * (9 / 102 - half))
    assert found.high == pytest.approx(100 * (9 / 102 + half))


@pytest.mark.parametrize(
    ("t", "degrees", "probability"),
    [
        (12.706, 1, 0.975),
        (4.303, 2, 0.975),
        (2.776, 4, 0.975),
        (3.747, 4, 0.99),
        (2.042, 30, 0.975),
        (1.646, 1000, 0.95),
        (0.0, 7, 0.5),
        (-2.776, 4, 0.025),
    ],
)
def test_student_s_t_is_that_of_the_tables(t: float, degrees: int, probability: float) -> None:
    assert student_t(t, degrees) == pytest.approx(probability, abs=1e-4)


def test_seeds_are_compared_by_welch_s_test() -> None:
    """By hand: variances 0.04 and 0.16 of three each, 2.0 apart."""
    first, second = [30.0, 30.2, 29.8], [32.0, 32.4, 31.6]
    found = compare_seeds("bleu", first, second)
    error = math.sqrt(0.04 / 3 + 0.16 / 3)
    degrees = (0.2 / 3) ** 2 / ((0.04 / 3) ** 2 / 2 + (0.16 / 3) ** 2 / 2)
    assert [fmean(first), stdev(first)] == pytest.approx([30, 0.2])
    assert degrees == pytest.approx(2.941, abs=0.001)
    assert found.p["Welch"] == pytest.approx(2 * (1 - student_t(2 / error, degrees)))
    assert found.p["Welch"] == pytest.approx(0.00474, abs=0.0001)
    assert found.is_significant()
    assert found.low == pytest.approx(2 - 3.2193 * error, abs=0.001), "the 97.5% quantile of t at 2.941"


def test_seeds_whose_scores_hardly_differ_have_degrees_of_freedom() -> None:
    found = compare_seeds("bleu", [1e-100, 2e-100], [1e-100, 3e-100])
    larger = compare_seeds("bleu", [1.0, 2.0], [1.0, 3.0])
    assert found.p["Welch"] == pytest.approx(larger.p["Welch"])


def test_seeds_that_give_the_same_scores_have_no_spread() -> None:
    assert compare_seeds("bleu", [30.0, 30.0], [30.0, 30.0]).p["Welch"] == 1
    assert compare_seeds("bleu", [30.0, 30.0], [31.0, 31.0]).p["Welch"] == 0


@pytest.mark.parametrize(("effect", "size"), [(2.0, 6), (1.0, 17), (0.8, 26), (0.5, 64)])
def test_the_number_of_seeds_is_that_of_power_tables(effect: float, size: int) -> None:
    """Cohen's tables for 80% at 0.05, two-sided."""
    needed = group_size(effect, 1.0)
    assert needed is not None
    assert abs(needed - size) <= 1


def test_nobody_is_sent_to_train_a_thousand_seeds() -> None:
    assert seeds_needed([30.0, 31.0], [30.01, 31.01]) is None
    assert seeds_needed([30.0, 31.0], [31.0, 32.0]) == pytest.approx(9, abs=1)


def test_a_few_lines_that_differ_are_no_difference() -> None:
    """sacreBLEU alone finds p = 0.0001 for one line that is better, where a fair coin would show heads."""
    references = sentences(100)
    outputs = with_errors(references, 0.2, 2)
    for lines, least in ((1, 1.0), (3, 0.25), (5, 0.0625)):
        wrong = [number for number, line in enumerate(outputs) if line != references[number]][:lines]
        better = [references[number] if number in wrong else line for number, line in enumerate(outputs)]
        for each in compare_translations(outputs, better, references, trials=500):
            assert min(each.p.values()) >= least
            assert not each.is_significant()


@pytest.mark.slow
def test_of_equal_systems_at_most_one_pair_in_twenty_is_called_different() -> None:
    """200 pairs of resampled outputs, either translation of a line going to either side: no true difference."""
    assert sum(map(_are_called_different, range(200))) <= 0.05 * 200


def _are_called_different(seed: int) -> bool:
    dice = random.Random(seed)
    references = sentences(100, seed=1)
    good, bad = with_errors(references, 0.15, 2), with_errors(references, 0.3, 3)
    drawn = [dice.randrange(100) for _ in range(100)]
    sides = [(good[line], bad[line]) if dice.random() < 0.5 else (bad[line], good[line]) for line in drawn]
    first, second = zip(*sides, strict=True)
    right = [references[line] for line in drawn]
    return agree(compare_translations(first, second, right, trials=300))


def test_of_equal_classifiers_at_most_one_pair_in_twenty_is_called_different() -> None:
    dice = random.Random(4)
    called = 0
    for _ in range(200):
        right = ["a"] * 500
        sides = [dice.sample(["a", "b"], 2) if dice.random() < 0.3 else ["a", "a"] for _ in right]
        first, second = zip(*sides, strict=True)
        called += compare_classes(first, second, right).is_significant()
    assert called <= 0.05 * 200
