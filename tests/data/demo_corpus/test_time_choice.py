"""Tenses are only chosen where the English sentence shows them."""

from __future__ import annotations

from echelon.data.demo_corpus.chance import Chance
from echelon.data.demo_corpus.meaning import HE, THEY, I, Tense
from echelon.data.demo_corpus.time_choice import Times
from tests.data.demo_corpus.words import clause, np


def _tenses(meaning_of: str, subject: str, tense: Tense, negated: bool = False) -> set[Tense]:
    person = {"I": I, "he": HE, "they": THEY}[subject]
    times = Times(Chance(1))
    meaning = clause(person, meaning_of, np("the book"))._replace(negated=negated)
    return {times.in_tense(meaning, tense).tense for _ in range(50)}


def test_they_read_is_always_the_present() -> None:
    assert _tenses("lesen", "they", "past") == {"present"}
    assert _tenses("lesen", "I", "past") == {"present"}


def test_a_past_that_can_be_seen_stays_a_past() -> None:
    assert _tenses("lesen", "he", "past") == {"past"}
    assert _tenses("kaufen", "they", "past") == {"past"}
    assert _tenses("lesen", "they", "past", negated=True) == {"past"}


def test_states_have_no_progressive() -> None:
    assert _tenses("brauchen", "he", "progressive") == {"present"}
    assert _tenses("kaufen", "he", "progressive") == {"progressive"}
