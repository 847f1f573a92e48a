"""Who does what, to whom and where: random clauses about deeds, that make sense. None has a tense yet."""

from __future__ import annotations

from collections.abc import Callable

from echelon.data.grammar import adverbials, verbs
from echelon.data.grammar.chance import Weighted
from echelon.data.grammar.meaning import Adverbial, Clause, NounPhrase, Phrase, Prepositional, Pronoun
from echelon.data.grammar.phrase_choice import Phrases
from echelon.data.grammar.verbs import Verb

# What only people do; and what they do for somebody.
_ACTED = tuple(verb for verb in verbs.TRANSITIVE if verb.subject not in ("animal", "hunter"))
_DONE_FOR = ("buy", "cook", "bake", "build", "draw", "order", "pack")
_DONE_WITH = ("read", "eat", "drink", "cook", "bake", "visit", "repair", "learn", "sing", "discuss", "work", "dance",
              "swim", "have", "shop", "hike", "play", "take", "go", "travel", "fly", "watch")  # fmt: skip


class Deeds:
    """Random clauses with a verb that says more than `be`. `plain` ones can be negated."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.chance = phrases.chance
        self._kinds: Weighted[Callable[[bool], Clause]] = Weighted(
            (36, self.transitive),
            (9, self.stative),
            (12, self.intransitive),
            (7, self.dative),
            (9, self.giving),
            (11, self.prepositional),
            (5, self.swapped),
            (8, self.motion),
            (6, self.travelling),
            (5, self.staying),
            (4, self.lying),
            (4, self.putting),
            (4, self.happening),
        )
        self._acts: Weighted[Callable[[bool], Clause]] = Weighted(
            (40, self.acting),
            (10, self.intransitive),
            (6, self.dative),
            (9, self.giving),
            (9, self.prepositional),
            (6, self.motion),
            (4, self.putting),
        )

    # --- Whole clauses ---

    def any(self, plain: bool = False) -> Clause:
        """Whatever happens."""
        return self.chance.draw(self._kinds)(plain)

    def deed(self, subject: Phrase | None = None, plain: bool = False) -> Clause:
        """Something that a person does, in the present, with no time; by `subject` if there is one."""
        clause = self.chance.draw(self._acts)(plain)
        return clause if subject is None else self.given_to(clause, subject)

    def given_to(self, clause: Clause, subject: Phrase) -> Clause:
        """The clause with another person for its subject."""
        clashes = subject.person < 3 and any(
            isinstance(meaning, Pronoun) and meaning.person == subject.person
            for meaning in _mentioned(clause)
        )
        return self.given_to(self.deed(), subject) if clashes else clause._replace(subject=subject)

    # --- By verb ---

    def transitive(self, plain: bool) -> Clause:
        return self._with_object(self.chance.pick(verbs.TRANSITIVE), plain)

    def acting(self, plain: bool) -> Clause:
        return self._with_object(self.chance.pick(_ACTED), plain)

    def stative(self, plain: bool) -> Clause:
        return self._with_object(self.chance.pick(verbs.STATIVE), plain)

    def dative(self, plain: bool) -> Clause:
        return self._with_object(self.chance.pick(verbs.DATIVE), plain)

    def prepositional(self, plain: bool) -> Clause:
        return self._with_object(self.chance.pick(verbs.PREPOSITIONAL), plain)

    def _with_object(self, verb: Verb, plain: bool) -> Clause:
        subject = self.phrases.subject(verb.subject, plain)
        thing = self.phrases.object(verb.object, subject, plain)
        return self._elaborated(Clause(subject, verb, (thing,)), plain)

    def giving(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.GIVING)
        subject = self.phrases.subject(verb.subject, plain)
        receiver = self.phrases.object(verb.receiver, subject, plain=True)
        if isinstance(receiver, NounPhrase) and receiver.determiner in ("", "a"):
            receiver = receiver._replace(determiner="the")
        gift = self.phrases.object(verb.object, subject, plain)
        if isinstance(gift, NounPhrase) and not gift.determiner and not gift.count:
            # "Give her milk" would not tell whose milk it is.
            gift = gift._replace(determiner="the")
        return Clause(subject, verb, (receiver, gift))

    def swapped(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.SWAPPED)
        experiencer = self.phrases.subject("person", plain=True)
        thing = self.phrases.noun_phrase(self.phrases.noun_of(verb.object), is_subject=True, plain=True)
        return Clause(experiencer, verb, (thing,))

    def intransitive(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.INTRANSITIVE)
        return self._elaborated(Clause(self.phrases.subject(verb.subject, plain), verb), plain)

    def happening(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.HAPPENING)
        clause = Clause(self.phrases.subject(verb.subject, plain), verb)
        if verb.english_word == "arrive" and not plain and self.chance.happens(40):
            return clause._replace(place=self.chance.pick(adverbials.IN_CITIES))
        return self._elaborated(clause, plain)

    def motion(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.MOTION)
        subject = self.phrases.subject(verb.subject, plain)
        clause = Clause(subject, verb)
        if verb.english == "come back":
            return clause._replace(goal=self._origin())
        if verb.english == "drive":
            goal: Prepositional | Adverbial = self.phrases.goal("driven")
        elif verb.english == "go" and self.chance.happens(15):
            goal = adverbials.HOME
        else:
            goal = self.phrases.goal("any" if verb.english == "go" else "nature home stops")
        return self._accompanied(clause._replace(goal=goal), plain)

    def _origin(self) -> Prepositional | Adverbial:
        if self.chance.happens(40):
            return self.chance.pick(adverbials.FROM_CITIES)
        return self.chance.pick(adverbials.places("driven")).off

    def travelling(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.TRAVELLING)
        subject = self.phrases.subject(verb.subject, plain)
        clause = Clause(subject, verb, goal=self.chance.pick(adverbials.TO_CITIES))
        if verb.english == "travel" and self.chance.happens(40):
            return clause._replace(company=self.chance.pick(adverbials.BY_VEHICLE))
        return self._accompanied(clause, plain)

    def staying(self, plain: bool) -> Clause:
        verb = self.chance.pick(verbs.STAYING)
        subject = self.phrases.subject(verb.subject, plain)
        roll = self.chance.below(100)
        place: Prepositional | Adverbial
        if verb.english == "stay" and roll < 40:
            place = adverbials.AT_HOME
        elif verb.english == "live" and roll < 40:
            place = Prepositional(
                "in", "in", "dative", self.phrases.noun_phrase(self.phrases.noun_of("home"), number=1)
            )
        elif roll < 70:
            place = self.chance.pick(adverbials.IN_CITIES)
        else:
            place = self.phrases.place("reached" if verb.english == "arrive" else "slept")
        return Clause(subject, verb, place=place)

    def lying(self, plain: bool) -> Clause:
        verb = self.chance.pick((verbs.LYING, verbs.STANDING, verbs.SITTING))
        subject = self.phrases.subject(verb.subject, plain)
        return Clause(subject, verb, place=self.phrases.spot(moving=False))

    def putting(self, plain: bool) -> Clause:
        verb = self.chance.pick((verbs.LAYING, verbs.PLACING))
        subject = self.phrases.subject(verb.subject, plain)
        thing = self.phrases.object(verb.object, subject, plain)
        return Clause(subject, verb, (thing,), goal=self.phrases.spot(moving=True))

    # --- With whom, where and how ---

    def _elaborated(self, clause: Clause, plain: bool) -> Clause:
        """Perhaps with a manner, company or place; a negated clause stays as it is."""
        if plain or _has_no_room(clause):
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
        if plain or not self.chance.happens(30) or not clause.verb.subject.startswith(("person", "adult")):
            return clause
        if word in _DONE_FOR:
            other = self.phrases.object("family guest young", clause.subject, plain=True)
            return clause._replace(company=Prepositional("for", "für", "accusative", other))
        if word in _DONE_WITH:
            other = self.phrases.object("family guest", clause.subject, plain=True)
            return clause._replace(company=Prepositional("with", "mit", "dative", other))
        return clause


def _has_no_room(clause: Clause) -> bool:
    """Whether the objects are long enough already."""
    return any(isinstance(meaning, NounPhrase) and meaning.owner is not None for meaning in clause.objects)


def _mentioned(clause: Clause) -> list[Phrase]:
    found = list(clause.objects)
    for part in (clause.company, clause.goal, clause.place):
        if isinstance(part, Prepositional):
            found.append(part.phrase)
    return found
