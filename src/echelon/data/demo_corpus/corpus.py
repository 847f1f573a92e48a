"""The embedded corpus: distinct sentences, shared out to train, valid and test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from echelon.data.demo_corpus.chance import Chance, Weighted
from echelon.data.demo_corpus.complex_sentences import ComplexSentences
from echelon.data.demo_corpus.pair import Pair
from echelon.data.demo_corpus.phrase_choice import Phrases

_SHORTEST, _LONGEST = 3, 20
"""Words of an English sentence."""
_PUNCTUATION = ".,!?'-"
SHA256 = "74af15b9b8046f10dba8167a6b359ef605599ec44201228542a8cf023cab2be2"
"""The digest of the text that `generate()` makes, by which prepared data is found without generating it. A change to
the grammar changes it; the tests hold the two together."""


@dataclass(frozen=True)
class EmbeddedCorpus:
    """Sentence pairs; no sentence of either language occurs twice, in whatever punctuation or case."""

    train: tuple[Pair, ...]
    valid: tuple[Pair, ...]
    test: tuple[Pair, ...]


class Sentences:
    """The mixture of sentences that the corpus is made of; the same ones for the same seed."""

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


def generate(seed: int = 1, train: int = 80_000, valid: int = 500, test: int = 1_000) -> EmbeddedCorpus:
    """The corpus of a seed: the same on every machine. Takes a few seconds at the sizes given."""
    sentences = Sentences(seed)
    pairs: list[Pair] = []
    seen: set[str] = set()
    seen_german: set[str] = set()
    while len(pairs) < train + valid + test:
        pair = sentences.next()
        source, target = _bare(pair.source), _bare(pair.target)
        if source in seen or target in seen_german or not _SHORTEST <= source.count(" ") + 1 <= _LONGEST:
            continue
        seen.add(source)
        seen_german.add(target)
        pairs.append(pair)
    held_out = valid + test
    return EmbeddedCorpus(tuple(pairs[held_out:]), tuple(pairs[:valid]), tuple(pairs[valid:held_out]))


def _bare(sentence: str) -> str:
    """The sentence without what does not make it another one."""
    bare = sentence.lower()
    for mark in _PUNCTUATION:
        bare = bare.replace(mark, "")
    return bare
