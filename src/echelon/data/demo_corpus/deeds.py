"""Who does what, to whom and where: random clauses about deeds, that make sense. None has a tense yet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from echelon.data.demo_corpus import adverbials, verbs
from echelon.data.demo_corpus.adjectives import Adjective, adjective, fitting
from echelon.data.demo_corpus.chance import Weighted
from echelon.data.demo_corpus.meaning import (
    Adverbial,
    Clause,
    Determiner,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
)
from echelon.data.demo_corpus.nouns import Noun, kinds_of, nouns_of
from echelon.data.demo_corpus.phrase_choice import Phrases
from echelon.data.demo_corpus.verbs import Verb

# What one does for somebody, or with somebody.
_DONE_FOR = ("buy", "cook", "bake", "build", "draw", "order", "pack")
_DONE_WITH = (
    "read", "eat", "drink", "cook", "bake", "visit", "repair", "learn", "sing", "discuss", "work", "dance",
    "swim", "have", "shop", "hike", "play", "take", "go", "travel", "fly", "watch",
)  # fmt: skip


@cache
def _willed(candidates: tuple[Verb, ...]) -> tuple[Verb, ...]:
    """The verbs for what people do on purpose: one can be told to do it."""
    return tuple(verb for verb in candidates if verb.is_willed)


# What makes one do it to a thing.
_REASONS = tuple(
    (verb, qualities)
    for english, qualities in (
        ("buy", "cheap good beautiful modern useful fresh delicious interesting warm comfortable"),
        ("sell", "old ugly small big expensive"),
        ("throw|away", "old broken dirty ugly"),
        ("wash", "dirty"),
        ("clean", "dirty"),
        ("clean|up", "dirty"),
        ("repair", "broken old"),
        ("read", "interesting exciting funny short famous important"),
        ("order", "cheap delicious good"),
        ("put|on", "warm comfortable new beautiful"),
        ("discuss", "important difficult"),
        ("translate", "important interesting short"),
        ("learn", "important simple"),
        ("look for", "expensive important new useful"),
        ("admire", "famous beautiful old"),
    )
    for verb in verbs.TRANSITIVE
    if verb.english == english
)


@cache
def _like_that(verb: Verb, quality: Adjective) -> tuple[Noun, ...]:
    """The things that the verb takes and that can be so."""
    lifeless = (entry for entry in nouns_of(verb.object) if not kinds_of(entry) & {"person", "animal"})
    return tuple(entry for entry in lifeless if quality in fitting(entry, "quality"))


class Frame(NamedTuple):
    """Verbs that are built upon in the same way."""

    verbs: tuple[Verb, ...]
    make: Callable[[Verb, bool], Clause]


class Deeds:
    """Random clauses with a verb that says more than `be`. `plain` ones can be negated."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.chance = phrases.chance
        self._frames: Weighted[Frame] = Weighted(
            (36, Frame(verbs.TRANSITIVE, self.with_object)),
            (9, Frame(verbs.STATIVE, self.with_object)),
            (7, Frame(verbs.DATIVE, self.with_object)),
            (11, Frame(verbs.PREPOSITIONAL, self.with_object)),
            (9, Frame(verbs.GIVING, self.giving)),
            (5, Frame(verbs.SWAPPED, self.swapped)),
            (12, Frame(verbs.INTRANSITIVE, self.intransitive)),
            (8, Frame(verbs.MOTION, self.motion)),
            (6, Frame(verbs.TRAVELLING, self.travelling)),
            (5, Frame(verbs.STAYING, self.staying)),
            (4, Frame(verbs.POSTURE, self.lying)),
            (4, Frame(verbs.PUTTING, self.putting)),
            (4, Frame(verbs.HAPPENING, self.happening)),
        )
        tasks = (
            (40, Frame(_willed(verbs.TRANSITIVE), self.with_object)),
            (6, Frame(_willed(verbs.DATIVE), self.with_object)),
            (9, Frame(_willed(verbs.PREPOSITIONAL), self.with_object)),
            (9, Frame(verbs.GIVING, self.giving)),
        )
        self._tasks: Weighted[Frame] = Weighted(*tasks)
        self._willed_frames: Weighted[Frame] = Weighted(
            *tasks,
            (10, Frame(_willed(verbs.INTRANSITIVE), self.intransitive)),
            (6, Frame(verbs.MOTION, self.motion)),
            (4, Frame(verbs.PUTTING, self.putting)),
        )

    def any(self, plain: bool = False) -> Clause:
        """Whatever happens."""
        return self._make(self.chance.draw(self._frames), plain)

    def deed(self, subject: Phrase | None = None, plain: bool = False) -> Clause:
        """Something that a person does on purpose; by `subject` if there is one."""
        clause = self._make(self.chance.draw(self._willed_frames), plain)
        return clause if subject is None else self.given_to(clause, subject)

    def errand(self) -> tuple[Clause, Clause]:
        """A person goes somewhere, and what for."""
        subject = self.phrases.subject("person", plain=True)
        purpose = self._make(self.chance.draw(self._tasks), plain=False)
        while _clash(purpose, subject):
            purpose = self._make(self.chance.draw(self._tasks), plain=False)
        goal: Prepositional | Adverbial = adverbials.HOME
        if purpose.verb.places or self.chance.happens(40):
            goal = self.phrases.goal(purpose.verb.places or "towns")
        way = Clause(subject, self.chance.pick(verbs.ON_FOOT), goal=goal)
        return way, purpose._replace(subject=subject, place=None)

    def with_reason(self) -> tuple[Clause, Adjective]:
        """Something that a person does to a thing, and what the thing is like that makes the person do it."""
        verb, qualities = self.chance.pick(_REASONS)
        quality = adjective(self.chance.pick(qualities.split()))
        candidates = _like_that(verb, quality)
        if not candidates:
            return self.with_reason()
        thing = self.phrases.noun_phrase(self.chance.pick(candidates), plain=True)
        determiner: Determiner = "a" if thing.determiner == "a" else "the"
        subject = self.phrases.subject(verb.subject, plain=True)
        return Clause(subject, verb, (NounPhrase(thing.noun, determiner, thing.plural),)), quality

    def given_to(self, clause: Clause, subject: Phrase) -> Clause:
        """The clause with another person for its subject."""
        return self.deed(subject) if _clash(clause, subject) else clause._replace(subject=subject)

    def _make(self, frame: Frame, plain: bool) -> Clause:
        return frame.make(self.chance.pick(frame.verbs), plain)

    # --- By the frame of the verb ---

    def with_object(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        thing = self.phrases.object(verb.object, subject, plain)
        if verb.many and isinstance(thing, NounPhrase) and not thing.plural:
            thing = NounPhrase(thing.noun, "", plural=True, adjectives=thing.adjectives)
        return self._elaborated(Clause(subject, verb, (thing,)), plain)

    def giving(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        receiver = self.phrases.object(verb.receiver, subject, plain=True)
        if isinstance(receiver, NounPhrase) and receiver.determiner in ("", "a"):
            receiver = receiver._replace(determiner="the")
        gift = self.phrases.object(verb.object, subject, plain)
        if isinstance(gift, NounPhrase) and not gift.determiner and not gift.number:
            # "Give her milk" would not tell whose milk it is.
            gift = gift._replace(determiner="the")
        return Clause(subject, verb, (receiver, gift))

    def swapped(self, verb: Verb, plain: bool) -> Clause:
        experiencer = self.phrases.subject("person", plain=True)
        thing = self.phrases.noun_phrase(self.phrases.noun_of(verb.object), is_subject=True, plain=True)
        return Clause(experiencer, verb, (thing,))

    def intransitive(self, verb: Verb, plain: bool) -> Clause:
        return self._elaborated(Clause(self.phrases.subject(verb.subject, plain), verb), plain)

    def happening(self, verb: Verb, plain: bool) -> Clause:
        clause = Clause(self.phrases.subject(verb.subject, plain), verb)
        if verb.english_word == "arrive" and not plain and self.chance.happens(40):
            return clause._replace(place=self.chance.pick(adverbials.IN_CITIES))
        return self._elaborated(clause, plain)

    def motion(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        clause = Clause(subject, verb)
        if verb.english == "come back":
            return clause._replace(goal=self._origin())
        if verb.english == "drive":
            goal: Prepositional | Adverbial = self.phrases.goal("driven")
        elif verb.english == "go" and self.chance.happens(15):
            goal = adverbials.HOME
        elif verb.english == "go" and self.chance.happens(12):
            goal = Prepositional("to", "zu", "dative", NounPhrase(self.phrases.noun_of("job")))
        else:
            goal = self.phrases.goal("any" if verb.english == "go" else "nature home stops")
        return self._accompanied(clause._replace(goal=goal), plain)

    def _origin(self) -> Prepositional | Adverbial:
        if self.chance.happens(40):
            return self.chance.pick(adverbials.FROM_CITIES)
        return self.chance.pick(adverbials.places("driven")).off

    def travelling(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        clause = Clause(subject, verb, goal=self.chance.pick(adverbials.TO_CITIES))
        if verb.english == "travel" and self.chance.happens(40):
            return clause._replace(company=self.chance.pick(adverbials.BY_VEHICLE))
        return self._accompanied(clause, plain)

    def staying(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        roll = self.chance.below(100)
        place: Prepositional | Adverbial
        if verb.english == "stay" and roll < 40:
            place = adverbials.AT_HOME
        elif verb.english == "live" and roll < 40:
            place = Prepositional(
                "in", "in", "dative", self.phrases.noun_phrase(self.phrases.noun_of("home"), singular=True)
            )
        elif roll < 70:
            place = self.chance.pick(adverbials.IN_CITIES)
        else:
            place = self.phrases.place("reached" if verb.english == "arrive" else "slept")
        clause = Clause(subject, verb, place=place)
        if verb.english == "stay" and not plain and self.chance.happens(25):
            cause = NounPhrase(self.phrases.noun_of("weather"))
            return clause._replace(company=Prepositional("because of", "wegen", "genitive", cause))
        return clause

    def lying(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        if verb.subject.startswith("person"):
            return Clause(subject, verb, place=self.phrases.seat(moving=False))
        return Clause(subject, verb, place=self.phrases.spot(moving=False, upright=verb.english == "stand"))

    def putting(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        if not verb.object:
            return Clause(subject, verb, goal=self.phrases.seat(moving=True))
        thing = self.phrases.object(verb.object, subject, plain)
        return Clause(
            subject, verb, (thing,), goal=self.phrases.spot(moving=True, upright=verb.english == "place")
        )

    # --- With whom, where and how ---

    def _elaborated(self, clause: Clause, plain: bool) -> Clause:
        """Perhaps with a manner, company or place; a negated clause stays as it is."""
        is_long = any(
            isinstance(meaning, NounPhrase) and meaning.owner is not None for meaning in clause.objects
        )
        if plain or is_long:
            return clause
        roll = self.chance.below(100)
        verb = clause.verb
        if roll < 14 and verb.manners:
            return clause._replace(manner=adverbials.MANNERS[self.chance.pick(verb.manners.split())])
        if roll < 40 and verb.places:
            if roll < 18 and "home" in verb.places:
                return clause._replace(place=adverbials.AT_HOME)
            return clause._replace(place=self.phrases.place(verb.places))
        return self._accompanied(clause, plain) if roll < 70 else clause

    def _accompanied(self, clause: Clause, plain: bool) -> Clause:
        """Perhaps with somebody, or for somebody."""
        word = clause.verb.english_word
        if plain or not clause.verb.is_willed or not self.chance.happens(30):
            return clause
        if word in _DONE_FOR:
            other = self.phrases.object("family guest young", clause.subject, plain=True)
            return clause._replace(company=Prepositional("for", "für", "accusative", other))
        if word in _DONE_WITH:
            other = self.phrases.object("family guest", clause.subject, plain=True)
            return clause._replace(company=Prepositional("with", "mit", "dative", other))
        return clause


def _clash(clause: Clause, subject: Phrase) -> bool:
    """Whether the subject would do something to itself: I see me."""
    spots = (clause.company, clause.goal, clause.place)
    mentioned = [*clause.objects, *(spot.phrase for spot in spots if isinstance(spot, Prepositional))]
    return subject.person < 3 and any(
        isinstance(meaning, Pronoun) and meaning.person == subject.person for meaning in mentioned
    )
