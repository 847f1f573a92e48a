"""English morphology against tables written out by hand."""

from __future__ import annotations

import pytest

from echelon.data.demo_corpus.english import comparative, phrase, superlative
from echelon.data.demo_corpus.english_forms import article, plural, verb_forms
from echelon.data.demo_corpus.meaning import HE, SHE, THEY, WE, YOU, I, Name
from tests.data.demo_corpus.words import gap, np

PLURALS = (
    "child children, woman women, policeman policemen, mouse mice, wolf wolves, knife knives, scarf scarves, "
    "city cities, strawberry strawberries, key keys, journey journeys, box boxes, church churches, "
    "bus buses, "
    "dress dresses, potato potatoes, photo photos, radio radios, boss bosses, boy boys, house houses"
)


@pytest.mark.parametrize("entry", PLURALS.split(", "))
def test_plurals(entry: str) -> None:
    singular, expected = entry.split()
    assert plural(singular) == expected


def test_compounds_put_their_last_word_into_the_plural() -> None:
    assert plural("wine glass") == "wine glasses"
    assert plural("house key") == "house keys"


@pytest.mark.parametrize(
    ("base", "forms"),
    [
        ("open", "opens opened opened opening"),
        ("close", "closes closed closed closing"),
        ("shop", "shops shopped shopped shopping"),
        ("plan", "plans planned planned planning"),
        ("visit", "visits visited visited visiting"),
        ("carry", "carries carried carried carrying"),
        ("play", "plays played played playing"),
        ("watch", "watches watched watched watching"),
        ("discuss", "discusses discussed discussed discussing"),
        ("travel", "travels traveled traveled traveling"),
        ("begin", "begins began begun beginning"),
        ("lie", "lies lay lain lying"),
        ("see", "sees saw seen seeing"),
        ("swim", "swims swam swum swimming"),
        ("write", "writes wrote written writing"),
        ("read", "reads read read reading"),
        ("go", "goes went gone going"),
        ("have", "has had had having"),
        ("snow", "snows snowed snowed snowing"),
        ("eat", "eats ate eaten eating"),
    ],
)
def test_verb_forms(base: str, forms: str) -> None:
    assert " ".join(verb_forms(base)) == f"{base} {forms}"


@pytest.mark.parametrize(
    ("english", "expected"),
    [
        ("a apple", "an apple"),
        ("a old man", "an old man"),
        ("a man", "a man"),
        ("a university", "a university"),
        ("a useful hammer", "a useful hammer"),
        ("a ugly hat", "an ugly hat"),
        ("a honest boss", "an honest boss"),
        ("a hotel", "a hotel"),
        ("this man*", "these men"),
        ("the 2 small dog*", "the two small dogs"),
        ("- coffee", "coffee"),
    ],
)
def test_noun_phrases(english: str, expected: str) -> None:
    assert phrase(np(english)) == expected


def test_a_goes_by_the_sound_and_not_by_the_letter() -> None:
    assert [article(word) for word in ("hour", "university", "umbrella", "house")] == ["an", "a", "an", "a"]


def test_pronouns_have_an_object_form() -> None:
    people = (I, YOU, HE, SHE, WE, THEY)
    assert [phrase(p) for p in people] == ["I", "you", "he", "she", "we", "they"]
    assert [phrase(p, is_object=True) for p in people] == ["me", "you", "him", "her", "us", "them"]


def test_relative_pronouns_tell_people_from_things() -> None:
    assert [phrase(gap("man")), phrase(gap("man"), is_object=True)] == ["who", "whom"]
    assert [phrase(gap("dog")), phrase(gap("dog"), is_object=True)] == ["that", "that"]


def test_possessors() -> None:
    assert phrase(np("the old book", owner=np("the teacher"))) == "the teacher's old book"
    assert phrase(np("the book")._replace(owner=Name("Anna", "f"))) == "Anna's book"


def test_adjectives_compare() -> None:
    table = {
        "big": "bigger biggest",
        "small": "smaller smallest",
        "nice": "nicer nicest",
        "friendly": "friendlier friendliest",
        "hot": "hotter hottest",
        "thin": "thinner thinnest",
        "good": "better best",
        "bad": "worse worst",
        "strict": "stricter strictest",
        "quiet": "quieter quietest",
        "cheap": "cheaper cheapest",
        "famous": "more famous most famous",
        "expensive": "more expensive most expensive",
        "hard-working": "more hard-working most hard-working",
    }
    assert {word: f"{comparative(word)} {superlative(word)}" for word in table} == table
