"""Whether scores differ by more than chance: pure functions of outputs, or of the scores of several seeds.

Translations: sacreBLEU's paired bootstrap and approximate randomisation. Classes: McNemar's exact test. Seeds: Welch's
t-test. Nothing is random from one call to the next: sacreBLEU's seed is fixed, unless SACREBLEU_SEED says otherwise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from sacrebleu import significance
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from echelon.recipe.schema import Tokenisation

LEVEL = 0.05
"""Of a test; intervals hold 1 - LEVEL."""
POWER = 0.8
"""With which a set or a number of seeds is said to show a difference."""
RESAMPLES, TRIALS = 1000, 10_000
"""Of the paired bootstrap and of the approximate randomisation: sacreBLEU's own numbers."""
_TRIALS_AT_A_TIME = 32
"""numpy draws that many bits at once, so parts of as many trials get the bits that all trials together would get."""
MOST_SEEDS = 100
"""Above which nobody is told to train more."""
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


@dataclass(frozen=True)
class Difference:
    """The second score minus the first, with its 95% interval, and what tests say of it."""

    metric: str
    first: float
    second: float
    low: float
    high: float
    p: Mapping[str, float]
    """By test. Two scores are called different only if all tests agree."""

    @property
    def size(self) -> float:
        return self.second - self.first

    def is_significant(self, level: float = LEVEL) -> bool:
        return all(p < level for p in self.p.values())

    def times_more_examples(self) -> float | None:
        """How many times as large a set would have to be to show a difference of this size; None if there is none."""
        deviation = (self.high - self.low) / (2 * _normal_quantile(1 - LEVEL / 2))
        if not self.size or not deviation:
            return None
        needed = (_normal_quantile(1 - LEVEL / 2) + _normal_quantile(POWER)) * deviation
        return max(1.0, (needed / self.size) ** 2)


def agree(differences: Sequence[Difference], level: float = LEVEL) -> bool:
    """Whether all metrics say that the same side is better, each by more than chance."""
    return len({each.size > 0 for each in differences}) == 1 and all(
        each.is_significant(level) for each in differences
    )


def compare_translations(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    tokenisation: Tokenisation = "13a",
    trials: int = TRIALS,
) -> list[Difference]:
    """BLEU and chrF of two systems' translations of the same lines."""
    bleu = BLEU(tokenize=tokenisation, force=True)
    return [
        _compare_by(metric, name, (first, second), references, trials)
        for name, metric in (("bleu", bleu), ("chrf", CHRF()))
    ]


def _compare_by(
    metric: Metric,
    name: str,
    systems: tuple[Sequence[str], Sequence[str]],
    references: Sequence[str],
    trials: int,
) -> Difference:
    statistics = [metric._extract_corpus_statistics(list(each), [list(references)]) for each in systems]
    base, beside = (float(metric._aggregate_and_compute(each).score) for each in statistics)
    one, other = (_resampled_scores(each, metric) for each in statistics)
    gaps = np.abs(other - one)
    shuffled = _shuffled_gaps(statistics[0], statistics[1], metric, trials)
    p = {
        "paired bootstrap": significance._compute_p_value(gaps - gaps.mean(), abs(beside - base)),
        "approximate randomisation": significance._compute_p_value(shuffled, abs(beside - base)),
    }
    low, high = np.quantile(other - one, [LEVEL / 2, 1 - LEVEL / 2])
    # sacreBLEU leaves out trials that are exactly as far apart as the systems. If few lines differ, most trials are: it
    # finds p = 0.0001 for the same outputs. With m lines that differ, 2 trials in 2^m swap none of them, or all.
    differing = sum(list(first) != list(second) for first, second in zip(*statistics, strict=True))
    least = min(1.0, 2.0 ** (1 - differing))
    floored = {test: max(value, least) for test, value in p.items()}
    return Difference(name, base, beside, float(low), float(high), floored)


# Both draw what sacreBLEU's own PairedTest draws, which holds all samples at once and so takes 160 kB a line. Its
# bootstrap gives no interval of the difference either. Both systems get the same samples, as the seed is the same.


def _resampled_scores(statistics: Sequence[Sequence[float]], metric: Metric) -> NDArray[np.float64]:
    """The scores of the paired bootstrap's samples."""
    rng, table = np.random.default_rng(_seed()), np.array(statistics, dtype="float32")
    samples = (table[rng.choice(len(table), size=len(table))].sum(0) for _ in range(RESAMPLES))
    return np.array([metric._compute_score_from_stats(sample).score for sample in samples])


def _shuffled_gaps(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], metric: Metric, trials: int
) -> NDArray[np.float64]:
    """How far apart two systems are in each trial of the approximate randomisation, which swaps half of the lines."""
    rng, gaps = np.random.default_rng(_seed() or None), list[float]()
    one, other = (
        np.array(each, dtype="float64") for each in (first, second)
    )  # whole numbers, so sums are exact
    for begin in range(0, trials, _TRIALS_AT_A_TIME):
        size = (min(_TRIALS_AT_A_TIME, trials - begin), len(one))
        kept = rng.integers(2, size=size, dtype=bool).astype("float64")
        swapped = 1.0 - kept
        pairs = zip(kept @ one + swapped @ other, swapped @ one + kept @ other, strict=True)
        scores = ([metric._aggregate_and_compute([each]).score for each in pair] for pair in pairs)
        gaps += [abs(left - right) for left, right in scores]
    return np.array(gaps)


def _seed() -> int | None:
    """sacreBLEU's."""
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    return None if seed.lower() == "none" else int(seed)


def compare_classes(first: Sequence[str], second: Sequence[str], references: Sequence[str]) -> Difference:
    """Top-1 of two classifiers' guesses for the same examples, in percent."""
    rows = list(zip(first, second, references, strict=True))
    lost = sum(one == right != other for one, other, right in rows)
    gained = sum(other == right != one for one, other, right in rows)
    base, count = sum(one == right for one, _, right in rows), len(rows)
    # Bonett and Price's interval of a paired difference, which is right for few examples too.
    less, more = (lost + 1) / (count + 2), (gained + 1) / (count + 2)
    half = _normal_quantile(1 - LEVEL / 2) * math.sqrt((less + more - (more - less) ** 2) / (count + 2))
    return Difference(
        "top1",
        100 * base / count,
        100 * (base + gained - lost) / count,
        100 * max(-1.0, more - less - half),
        100 * min(1.0, more - less + half),
        {"McNemar": mcnemar(lost, gained)},
    )


def mcnemar(lost: int, gained: int) -> float:
    """The exact two-sided p: how often a fair coin is as one-sided in `lost + gained` throws."""
    throws = lost + gained
    logs = (
        math.lgamma(throws + 1)
        - math.lgamma(heads + 1)
        - math.lgamma(throws - heads + 1)
        - throws * math.log(2)
        for heads in range(min(lost, gained) + 1)
    )
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def compare_seeds(metric: str, first: Sequence[float], second: Sequence[float]) -> Difference:
    """The means of scores over seeds, two or more of each: Welch's t-test, whose groups may spread differently."""
    means = (float(np.mean(first)), float(np.mean(second)))
    shares = [float(np.var(scores, ddof=1)) / len(scores) for scores in (first, second)]
    error, size = math.sqrt(sum(shares)), means[1] - means[0]
    if error == 0:
        return Difference(metric, *means, size, size, {"Welch": float(size == 0)})
    parts = [share / max(shares) for share in shares]  # the squares of very small ones would be zero
    degrees = sum(parts) ** 2 / sum(
        part**2 / (len(scores) - 1) for part, scores in zip(parts, (first, second), strict=True)
    )
    half = error * _quantile(1 - LEVEL / 2, lambda t: student_t(t, degrees))
    p = 2 * (1 - student_t(abs(size) / error, degrees))
    return Difference(metric, *means, size - half, size + half, {"Welch": p})


def seeds_needed(first: Sequence[float], second: Sequence[float]) -> int | None:
    """About how many seeds of each would show the difference that there seems to be; None if more than MOST_SEEDS."""
    deviation = math.sqrt((float(np.var(first, ddof=1)) + float(np.var(second, ddof=1))) / 2)
    return group_size(abs(float(np.mean(second)) - float(np.mean(first))), deviation)


def group_size(difference: float, deviation: float) -> int | None:
    """The size of each of two groups for a t-test with POWER at LEVEL; None if it is above MOST_SEEDS."""
    for count in range(2, MOST_SEEDS + 1):
        quantiles = sum(
            _quantile(probability, lambda t, degrees=2 * count - 2: student_t(t, degrees))  # type: ignore[misc]
            for probability in (1 - LEVEL / 2, POWER)
        )
        if difference * math.sqrt(count / 2) >= quantiles * deviation:
            return count
    return None


def student_t(t: float, degrees: float) -> float:
    """The distribution function of Student's t: if t = sqrt(degrees) * tan(x), an integral of cos(x)^(degrees - 1)."""
    angle = math.atan(t / math.sqrt(degrees)) / 2
    integral = angle * float(_WEIGHTS @ np.cos(angle * (_NODES + 1)) ** (degrees - 1))
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - math.log(math.pi) / 2
    return 0.5 + math.exp(log_scale) * integral


def _normal_quantile(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


def _quantile(probability: float, distribution: Callable[[float], float]) -> float:
    """Where a distribution function above its median reaches a probability."""
    low, high = 0.0, 1.0
    while distribution(high) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if distribution(middle) < probability else (low, middle)
    return high
