"""What somebody or something is: random clauses about qualities, professions, ages, prices and existence."""

from __future__ import annotations

from functools import cache

from echelon.data.demo_corpus import adverbials, verbs
from echelon.data.demo_corpus.adjectives import Adjective, fitting
from echelon.data.demo_corpus.chance import Weighted
from echelon.data.demo_corpus.meaning import (
    ES,
    THIS,
    Adverbial,
    Clause,
    ComparisonWord,
    Degree,
    Measure,
    Modal,
    NounPhrase,
    Phrase,
    Prepositional,
    Profession,
    Quality,
    Tense,
)
from echelon.data.demo_corpus.nouns import NOUNS, Noun, kinds_of, noun, nouns_of
from echelon.data.demo_corpus.phrase_choice import Phrases, is_female

_DEGREES: Weighted[Degree] = Weighted((50, ""), (30, "very"), (15, "too"), (15, "quite"))
_FEELING_DEGREES: Weighted[Degree] = Weighted((60, ""), (30, "very"), (15, "quite"))
_ABSOLUTE = ("broken", "empty", "round")
_COMPARABLE = (
    "big", "small", "old", "young", "tall", "expensive", "cheap", "beautiful", "heavy", "high", "long",
    "good", "interesting", "difficult", "friendly", "clever", "strong", "dangerous", "fast", "famous",
    "polite", "lazy", "rich", "strict", "patient", "useful", "important", "boring",
)  # fmt: skip
_PROFESSIONS = tuple(entry for entry in NOUNS if entry.feminine)
_SIGHTS = "church castle hotel museum restaurant tower bridge"
_FOUND = "church hotel museum restaurant café supermarket bakery theater castle tower school library"
_FOUND_AT_STOPS = "hotel restaurant café supermarket bakery"


@cache
def _rivals(chosen: Noun, adjective: Adjective) -> tuple[Noun, ...]:
    """Other nouns of the same kinds of which the adjective can be said."""
    same = nouns_of(chosen.labels)
    return tuple(other for other in same if other is not chosen and adjective in fitting(other, "quality"))


@cache
def _moods() -> tuple[Adjective, ...]:
    states = fitting(noun("teacher"), "state")
    return tuple(state for state in states if state.english not in ("healthy", "satisfied"))


class States:
    """Random clauses with `be`, `become`, `have`, `cost` and `there is`."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.chance = phrases.chance

    def quality(self) -> Clause:
        """Somebody or something is so, or more so than another."""
        chosen = self.phrases.noun_of("person animal thing building room food text show said settlement")
        if "person" in kinds_of(chosen) and self.chance.happens(45):
            return self.feeling(self.phrases.subject("person", plain=True))
        adjective = self.chance.pick(fitting(chosen, "quality"))
        subject = self._bare_phrase(chosen)
        rivals = _rivals(chosen, adjective) if adjective.english in _COMPARABLE else ()
        if rivals and self.chance.happens(40):
            than = self._bare_phrase(self.chance.pick(rivals), singular=True)
            comparison: ComparisonWord = "than" if self.chance.happens(65) else "as"
            return Clause(subject, verbs.BE, complement=Quality(adjective, "", comparison, than))
        degree = "" if adjective.english in _ABSOLUTE else self.chance.draw(_DEGREES)
        return Clause(subject, verbs.BE, complement=Quality(adjective, degree))

    def _bare_phrase(self, chosen: Noun, singular: bool = False) -> NounPhrase:
        phrase = self.phrases.noun_phrase(chosen, is_subject=True, plain=True, singular=singular)
        determiner = phrase.determiner or "the"
        return phrase._replace(adjectives=(), determiner=determiner)

    def feeling(self, subject: Phrase) -> Clause:
        """A person is tired, hungry, happy."""
        adjective = self.chance.pick(fitting(noun("teacher"), "state"))
        return Clause(subject, verbs.BE, complement=Quality(adjective, self.chance.draw(_FEELING_DEGREES)))

    def whereabouts(self) -> Clause:
        """Somebody is at the doctor's; something is in the drawer."""
        if self.chance.happens(40):
            thing = self._bare_phrase(self.phrases.noun_of("small tool readable clothes"))
            return Clause(thing, verbs.BE, place=self.phrases.spot(moving=False, upright=False))
        subject = self.phrases.subject("person", plain=True)
        roll = self.chance.below(100)
        place: Prepositional | Adverbial = self.phrases.place("home work town stops shops")
        if roll < 30:
            place = self.chance.pick((adverbials.AT_HOME, *adverbials.AT_SOMEBODYS))
        elif roll < 40:
            place = self.chance.pick(adverbials.IN_CITIES)
        return Clause(subject, verbs.BE, place=place)

    def mood(self, subject: Phrase) -> Clause:
        """A person feels so that it makes a difference to what the person does."""
        return Clause(subject, verbs.BE, complement=Quality(self.chance.pick(_moods())))

    def profession(self) -> Clause:
        """A person is, or becomes, a teacher."""
        subject = self.phrases.subject("family", plain=True)
        female = is_female(subject)
        if female is None:
            subject = self.phrases.name()
            female = subject.gender == "f"
        complement = Profession(self.chance.pick(_PROFESSIONS), female)
        if self.chance.happens(35):
            modal: Modal = "want to" if self.chance.happens(60) else ""
            tense: Tense = "present" if modal else "future"
            return Clause(subject, verbs.BECOME, complement=complement, modal=modal, tense=tense)
        return Clause(subject, verbs.BE, complement=complement, negated=self.chance.happens(15))

    def measured(self) -> Clause:
        """Somebody's age, a price, or how many pages a book has."""
        roll = self.chance.below(100)
        if roll < 35:
            subject = self.phrases.subject("family", plain=True)
            is_parent = isinstance(subject, NounPhrase) and "parent" in kinds_of(subject.noun)
            count = self.chance.between(30, 99) if is_parent else self.chance.between(2, 70)
            return Clause(subject, verbs.BE, complement=Measure(count, "years old", "Jahre alt"))
        if roll < 75:
            thing = self._bare_phrase(self.phrases.noun_of("thing"), singular=True)
            count = self.chance.between(2, 399)
            return Clause(thing, verbs.COST, complement=Measure(count, "euros", "Euro"))
        book = self._bare_phrase(self.phrases.noun_of("paged"), singular=True)
        pages = NounPhrase(noun("page"), "", plural=True, number=self.chance.between(20, 399))
        return Clause(book, verbs.HAVE, (pages,))

    def superlative(self) -> Clause:
        """Somebody is the youngest student in the city; this is the oldest church in the village."""
        chosen = self.phrases.noun_of(_SIGHTS)
        subject: Phrase = THIS
        if self.chance.happens(50):
            chosen, subject = self.phrases.noun_of("job"), self._man()
        adjective = self.chance.pick(fitting(chosen, "quality"))
        where = self.phrases.place("towns")
        best = NounPhrase(chosen, "the", adjectives=(adjective,), superlative=True, spot=where)
        return Clause(subject, verbs.BE, complement=best)

    def _man(self) -> Phrase:
        subject = self.phrases.subject("family", plain=True)
        while is_female(subject) is not False:
            subject = self.phrases.subject("family", plain=True)
        return subject

    def existence(self) -> Clause:
        """There is something somewhere."""
        at_stop = self.chance.happens(30)
        chosen = self.phrases.noun_of(_FOUND_AT_STOPS if at_stop else _FOUND)
        thing = self.phrases.noun_phrase(chosen)
        if not thing.plural:
            thing = thing._replace(determiner="no" if self.chance.happens(30) else "a", owner=None)
        elif not thing.number:
            thing = thing._replace(determiner=self.chance.pick(("many", "some", "several", "no")))
        else:
            thing = thing._replace(determiner="")
        tense: Tense = "past" if self.chance.happens(25) else "present"
        return Clause(
            ES,
            verbs.THERE_IS,
            (thing,),
            tense,
            place=self.phrases.place("stops park" if at_stop else "towns"),
        )

    def weather(self, tense: Tense) -> Clause:
        """It rains or snows."""
        return Clause(ES, self.chance.pick(verbs.WEATHER), tense=tense)
