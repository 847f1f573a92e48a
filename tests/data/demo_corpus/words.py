"""Short names for building meanings in tests."""

from __future__ import annotations

from echelon.data.demo_corpus import verbs
from echelon.data.demo_corpus.adjectives import adjective
from echelon.data.demo_corpus.meaning import Clause, Determiner, Gap, NounPhrase, Phrase
from echelon.data.demo_corpus.nouns import noun
from echelon.data.demo_corpus.verbs import Verb

_TABLES = [value for value in vars(verbs).values() if isinstance(value, tuple)]
ALL_VERBS = [
    *(entry for table in _TABLES for entry in table if isinstance(entry, Verb)),
    *(value for value in vars(verbs).values() if isinstance(value, Verb)),
]


def verb(german: str, english: str = "") -> Verb:
    """The verb with that German infinitive, and that English one if there are several."""
    return next(v for v in ALL_VERBS if v.german == german and (not english or v.english == english))


def np(text: str, owner: NounPhrase | None = None, relative: Clause | None = None) -> NounPhrase:
    """A noun phrase from English words, `*` for the plural: `the old man`, `my two child*`."""
    determiner, *middle, last = text.split()
    chosen = noun(last.rstrip("*").replace("_", " "))
    kind: Determiner = "" if determiner == "-" else determiner  # type: ignore[assignment]
    adjectives = tuple(adjective(word) for word in middle if not word.isdigit())
    number = next((int(word) for word in middle if word.isdigit()), 0)
    return NounPhrase(chosen, kind, last.endswith("*"), adjectives, number, owner, relative=relative)


def gap(text: str) -> Gap:
    """The gap for a head: `man`, `child*`."""
    return Gap(noun(text.rstrip("*")), text.endswith("*"))


def clause(subject: Phrase, german: str, *objects: Phrase) -> Clause:
    """A clause in the present."""
    return Clause(subject, verb(german), objects)
