"""The mixture of sentences that the corpus is made of."""

from __future__ import annotations

from collections.abc import Callable

from echelon.data.demo_corpus.chance import Chance, Weighted
from echelon.data.demo_corpus.complex_sentences import ComplexSentences
from echelon.data.demo_corpus.pair import Pair
from echelon.data.demo_corpus.phrase_choice import Phrases


class Sentences:
    """Random sentences; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = Chance(seed)
        self._phrases = Phrases(self._chance)
        complex_ = ComplexSentences(self._phrases)
        simple = complex_.simple
        self._kinds: Weighted[Callable[[], Pair]] = Weighted(
            (28, simple.telling),
            (7, simple.asking),
            (9, simple.asking_for),
            (8, simple.describing),
            (3, simple.measuring),
            (2, simple.naming_a_profession),
            (2, simple.comparing_with_all),
            (3, simple.existing),
            (5, simple.commanding),
            (6, complex_.about_somebody),
            (5, complex_.about_something),
            (7, complex_.reporting),
            (4, complex_.wondering),
            (8, complex_.reasoning),
            (6, complex_.timing),
            (2, complex_.taking_up),
            (4, complex_.intending),
            (4, complex_.attempting),
            (4, complex_.joining),
        )

    def next(self) -> Pair:
        """The next sentence."""
        self._phrases.begin()
        return self._chance.draw(self._kinds)()
