"""What a sentence says, before it is said in a language: phrases, adverbials and clauses.

`english.py` and `german.py` each turn these into words. Nothing here knows how.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from echelon.data.demo_corpus.adjectives import Adjective
from echelon.data.demo_corpus.nouns import Gender, Noun
from echelon.data.demo_corpus.verbs import GrammaticalCase, Verb

Tense = Literal["present", "progressive", "past", "perfect", "future"]
Modal = Literal["", "can", "must", "may", "should", "want to", "would like to", "like to"]
Determiner = Literal[
    "", "the", "a", "no", "this", "every", "which", "all", "both", "many", "some", "several", "how many",
    "my", "your", "his", "her", "our", "their",
]  # fmt: skip
Degree = Literal["", "very", "too", "quite"]
ComparisonWord = Literal["than", "as"]


class Pronoun(NamedTuple):
    """A personal pronoun, in the nominative of both languages."""

    english: str
    german: str
    person: int
    plural: bool


class Name(NamedTuple):
    """A first name; the same in both languages, and never ending in -s."""

    name: str
    gender: Gender
    person: int = 3
    plural: bool = False


class NounPhrase(NamedTuple):
    """A noun with all that goes with it. `owner` takes the determiner's place: the teacher's, whose book."""

    noun: Noun
    determiner: Determiner = "the"
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    number: int = 0
    """A cardinal before the noun, from 2 on; 0 for none."""
    owner: NounPhrase | Name | Gap | None = None
    superlative: bool = False
    """The adjective is in the superlative."""
    spot: Prepositional | None = None
    """Where the thing is: the house `in the village`."""
    relative: Clause | None = None
    """A relative clause; somewhere in it stands a `Gap` for this noun."""
    person: int = 3


class Both(NamedTuple):
    """Two phrases joined by `and`."""

    first: NounPhrase | Name
    second: NounPhrase | Name
    person: int = 3
    plural: bool = True


class Asked(NamedTuple):
    """`who` or `what`."""

    word: Literal["who", "what"]
    person: int = 3
    plural: bool = False


class Gap(NamedTuple):
    """Where the head of a relative clause belongs: who, that, whom; der, den, dem."""

    noun: Noun
    plural: bool
    person: int = 3


Phrase = Pronoun | Name | NounPhrase | Both | Asked | Gap


class Adverbial(NamedTuple):
    """A fixed expression, such as `every day`, jeden Tag."""

    english: str
    german: str


class Prepositional(NamedTuple):
    """A preposition with its phrase; the case is the German one."""

    english: str
    german: str
    case: GrammaticalCase
    phrase: Phrase


class Quality(NamedTuple):
    """A predicative adjective: is very old, is older than the dog, is as old as the dog."""

    adjective: Adjective
    degree: Degree = ""
    comparison: ComparisonWord | None = None
    than: Phrase | None = None


class Profession(NamedTuple):
    """A predicative noun that has no article in German: she is a teacher, sie ist Lehrerin."""

    noun: Noun
    female: bool


class Measure(NamedTuple):
    """A number with its unit, in words: `is forty years old`, `costs forty euros`."""

    number: int
    english: str
    german: str


Complement = Quality | Profession | Measure | NounPhrase


class Clause(NamedTuple):
    """One verb with its arguments and adverbials, in no word order yet."""

    subject: Phrase
    verb: Verb
    objects: tuple[Phrase, ...] = ()
    """In the order of `verb.government`."""
    tense: Tense = "present"
    modal: Modal = ""
    negated: bool = False
    complement: Complement | None = None
    time: Adverbial | Prepositional | None = None
    time_first: bool = False
    """The time opens the sentence; in German the subject then follows the verb."""
    adverb: Adverbial | None = None
    """How often, or `already`, `never`, `yet`: stands by the verb."""
    manner: Adverbial | None = None
    company: Prepositional | Adverbial | None = None
    """With whom, for whom, by what."""
    place: Prepositional | Adverbial | None = None
    goal: Prepositional | Adverbial | None = None
    asked: Adverbial | None = None
    """The adverbial that a question asks for: when, where, why."""


I = Pronoun("I", "ich", 1, plural=False)  # noqa: E741 - it is called that
YOU = Pronoun("you", "du", 2, plural=False)
HE = Pronoun("he", "er", 3, plural=False)
SHE = Pronoun("she", "sie", 3, plural=False)
WE = Pronoun("we", "wir", 1, plural=True)
THEY = Pronoun("they", "sie", 3, plural=True)
PERSONAL = (I, YOU, HE, SHE, WE, THEY)

# `it` is only said of a noun in the same sentence, whose gender German takes up.
IT: dict[Gender, Pronoun] = {
    "m": Pronoun("it", "er", 3, plural=False),
    "f": Pronoun("it", "sie", 3, plural=False),
    "n": Pronoun("it", "es", 3, plural=False),
}
ES = IT["n"]
THIS = Pronoun("this", "das", 3, plural=False)

ALREADY = Adverbial("already", "schon")
NEVER_YET = Adverbial("never", "noch nie")
YET = Adverbial("yet", "noch")


def is_fronted(meaning: Phrase) -> bool:
    """Whether the phrase opens its clause: a question word, or the gap of a relative clause."""
    if isinstance(meaning, NounPhrase):
        return meaning.determiner in ("which", "how many") or isinstance(meaning.owner, Gap)
    return isinstance(meaning, Asked | Gap)


def stands_for_head(spot: Adverbial | Prepositional | None) -> bool:
    """Whether an adverbial opens a relative clause: the house `in which` she lives."""
    return isinstance(spot, Prepositional) and isinstance(spot.phrase, Gap)
