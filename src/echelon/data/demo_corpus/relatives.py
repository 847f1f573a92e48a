"""Relative clauses: what somebody or something does, or has done to it, said of a noun."""

from __future__ import annotations

from functools import cache

from echelon.data.demo_corpus import verbs
from echelon.data.demo_corpus.adjectives import fitting
from echelon.data.demo_corpus.adverbials import PLACES, places
from echelon.data.demo_corpus.chance import Weighted
from echelon.data.demo_corpus.english import hides_its_tense
from echelon.data.demo_corpus.meaning import Clause, Gap, NounPhrase, Prepositional, Quality, Tense
from echelon.data.demo_corpus.nouns import Noun, kinds_of, nouns_of
from echelon.data.demo_corpus.phrase_choice import Phrases
from echelon.data.demo_corpus.verbs import Verb

_WITH_OBJECT = verbs.TRANSITIVE + verbs.STATIVE + verbs.DATIVE + verbs.PREPOSITIONAL
_TENSES: Weighted[Tense] = Weighted((55, "present"), (45, "past"))


@cache
def _done_by(chosen: Noun) -> tuple[Verb, ...]:
    return tuple(verb for verb in _WITH_OBJECT if chosen in nouns_of(verb.subject))


@cache
def _done_to(chosen: Noun) -> tuple[Verb, ...]:
    wanted = _WITH_OBJECT + verbs.SWAPPED
    return tuple(verb for verb in wanted if chosen in nouns_of(verb.object))


class Relatives:
    """Random relative clauses."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.chance = phrases.chance

    def about(self, head: NounPhrase, main: Verb) -> NounPhrase:
        """The phrase with a relative clause that does not repeat the `main` verb."""
        clause = self._clause(head.noun, Gap(head.noun, head.plural))
        for _ in range(8):
            if clause is None or clause.verb is not main:
                return head._replace(relative=clause)
            clause = self._clause(head.noun, Gap(head.noun, head.plural))
        return head

    def _clause(self, chosen: Noun, gap: Gap) -> Clause | None:
        kinds = kinds_of(chosen)
        roll = self.chance.below(100)
        if "person" in kinds and roll < 12:
            return self._whose(gap)
        if "home" in kinds and roll < 40:
            return self._in_which(_LIVE, Prepositional("in", "in", "dative", gap))
        if chosen.english in PLACES and roll < 40:
            place = PLACES[chosen.english]
            verb = _SLEEP if place in places("rest") else _WORK
            return self._in_which(verb, place.at._replace(phrase=gap))
        if _done_by(chosen) and (roll < 55 or not _done_to(chosen)):
            return self._subject_gap(self.chance.pick(_done_by(chosen)), gap)
        return self._object_gap(self.chance.pick(_done_to(chosen)), gap) if _done_to(chosen) else None

    def _in_which(self, verb: Verb, place: Prepositional) -> Clause:
        subject = self.phrases.subject("person", plain=True)
        return self._told(Clause(subject, verb, place=place))

    def _subject_gap(self, verb: Verb, gap: Gap) -> Clause:
        thing = self.phrases.object(verb.object, gap)
        return self._told(Clause(gap, verb, (thing,)))

    def _object_gap(self, verb: Verb, gap: Gap) -> Clause:
        subject = self.phrases.subject(verb.subject, plain=True)
        return self._told(Clause(subject, verb, (gap,)))

    def _told(self, clause: Clause) -> Clause:
        tense = self.chance.draw(_TENSES)
        if hides_its_tense(clause.verb, clause.subject):
            tense = "present"
        return clause._replace(tense=tense)

    def _whose(self, gap: Gap) -> Clause:
        """Whose brother is tired, whose dog is big."""
        chosen = self.phrases.noun_of("family pet car house")
        sort = "state" if "family" in kinds_of(chosen) else "quality"
        adjective = self.chance.pick(fitting(chosen, sort))
        owned = NounPhrase(chosen, "", owner=gap)
        return Clause(owned, verbs.BE, complement=Quality(adjective))


_LIVE = next(verb for verb in verbs.STAYING if verb.english == "live")
_WORK = next(verb for verb in verbs.INTRANSITIVE if verb.english == "work")
_SLEEP = next(verb for verb in verbs.INTRANSITIVE if verb.english == "sleep")
