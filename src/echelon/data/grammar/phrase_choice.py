"""Who and what: random phrases that make sense.

Nouns are picked from the kinds that a verb accepts, adjectives from those that fit the noun. No sentence names
the same thing twice.
"""

from __future__ import annotations

from functools import cache

from echelon.data.grammar import adverbials as when_and_where
from echelon.data.grammar.adjectives import Adjective, fitting
from echelon.data.grammar.chance import Chance, Weighted
from echelon.data.grammar.meaning import (
    HE,
    PERSONAL,
    SHE,
    THEY,
    Both,
    Determiner,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Pronoun,
)
from echelon.data.grammar.nouns import Noun, kinds_of, noun, nouns_of

_SINGULAR: Weighted[Determiner] = Weighted(
    (50, "the"),
    (27, "a"),
    (4, "my"),
    (3, "your"),
    (3, "his"),
    (3, "her"),
    (2, "our"),
    (2, "their"),
    (6, "this"),
)
_SINGULAR_KNOWN: Weighted[Determiner] = Weighted(
    (70, "the"),
    (4, "my"),
    (3, "your"),
    (3, "his"),
    (3, "her"),
    (2, "our"),
    (2, "their"),
    (8, "this"),
    (4, "every"),
)
_PLURAL: Weighted[Determiner] = Weighted(
    (42, "the"), (15, ""), (3, "my"), (3, "your"), (3, "his"), (3, "her"), (2, "our"), (2, "their"), (7, "this"),
    (7, "many"), (7, "some"), (4, "all"), (4, "several"),
)  # fmt: skip
_PLURAL_KNOWN: Weighted[Determiner] = Weighted((60, "the"), (5, "my"), (5, "our"), (10, "this"), (8, "all"))
_MASS: Weighted[Determiner] = Weighted((50, ""), (38, "the"), (4, "my"), (4, "his"), (4, "her"))
_POSSESSIVE: Weighted[Determiner] = Weighted(
    (30, "my"), (15, "your"), (15, "his"), (15, "her"), (15, "our"), (10, "their")
)
_NEUTRAL_WHEN_NEGATED = ("", "the", "a", "this", "my", "your", "his", "her", "our", "their")


@cache
def _ownable(owned: Noun) -> bool:
    return bool(kinds_of(owned) & {"thing", "pet", "home", "friend"})


class Phrases:
    """Random noun phrases, names and pronouns for one sentence after the other."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance
        self._named: set[Noun | Name] = set()

    def begin(self) -> None:
        """Forget what the last sentence named."""
        self._named.clear()

    def noun_of(self, kinds: str) -> Noun:
        """A noun of one of the kinds that this sentence has not named yet."""
        candidates = nouns_of(kinds)
        for _ in range(8):
            found = self.chance.pick(candidates)
            if found not in self._named:
                break
        self._named.add(found)
        return found

    def name(self) -> Name:
        """A first name that this sentence has not used yet."""
        for _ in range(8):
            found = self.chance.pick(when_and_where.NAMES)
            if found not in self._named:
                break
        self._named.add(found)
        return found

    def subject(self, kinds: str, plain: bool = False) -> Phrase:
        """Somebody or something that acts. `plain` phrases can be negated: not `every man`."""
        chosen = self.noun_of(kinds)
        if "person" in kinds_of(chosen):
            roll = self.chance.below(100)
            if roll < 34:
                self._named.discard(chosen)
                return self.chance.pick(PERSONAL)
            if roll < 48:
                return self.name()
            if roll < 53:
                return self._pair(chosen)
        return self.noun_phrase(chosen, is_subject=True, plain=plain)

    def object(self, kinds: str, subject: Phrase, plain: bool = False) -> Phrase:
        """Somebody or something that is acted on; never the subject again."""
        chosen = self.noun_of(kinds)
        if "person" in kinds_of(chosen):
            roll = self.chance.below(100)
            if roll < 28:
                other = self.other_pronoun(subject)
                if other:
                    return other
            if roll < 45:
                return self.name()
        return self.noun_phrase(chosen, plain=plain)

    def other_pronoun(self, subject: Phrase) -> Pronoun | None:
        """A pronoun that is not about the subject."""
        chosen = self.chance.pick(PERSONAL)
        if chosen.person < 3 and chosen.person == subject.person:
            return None
        return chosen

    def _pair(self, first: Noun) -> Both | NounPhrase:
        if "family" in kinds_of(first):
            return Both(self.name(), self.noun_phrase(first, plain=True, number=1))
        return Both(self.name(), self.name())

    def noun_phrase(
        self, chosen: Noun, is_subject: bool = False, plain: bool = False, number: int = 0
    ) -> NounPhrase:
        """A phrase about a noun; `number` 1 keeps it singular."""
        chance = self.chance
        kinds = kinds_of(chosen)
        if chosen.is_mass:
            return NounPhrase(chosen, chance.draw(_MASS), adjectives=self.adjectives(chosen))
        plural = number != 1 and chance.happens(22)
        if "family" in kinds:
            count = chance.between(2, 4) if plural and not plain and chance.happens(30) else 0
            return NounPhrase(chosen, chance.draw(_POSSESSIVE), plural, self.adjectives(chosen), count)
        if plural:
            return self._plural(chosen, is_subject, plain)
        determiner = chance.draw(_SINGULAR_KNOWN if is_subject else _SINGULAR)
        if plain and determiner not in _NEUTRAL_WHEN_NEGATED:
            determiner = "the"
        owner = self.owner() if determiner == "the" and _ownable(chosen) and chance.happens(12) else None
        return NounPhrase(chosen, determiner, adjectives=self.adjectives(chosen), owner=owner)

    def _plural(self, chosen: Noun, is_subject: bool, plain: bool) -> NounPhrase:
        chance = self.chance
        adjectives = self.adjectives(chosen)
        if not plain and chance.happens(18):
            determiner: Determiner = "the" if is_subject or chance.happens(25) else ""
            count = chance.between(2, 12) if chance.happens(75) else chance.between(13, 99)
            return NounPhrase(chosen, determiner, plural=True, adjectives=adjectives, count=count)
        determiner = chance.draw(_PLURAL_KNOWN if is_subject else _PLURAL)
        if plain and determiner not in _NEUTRAL_WHEN_NEGATED:
            determiner = "the"
        return NounPhrase(chosen, determiner, plural=True, adjectives=adjectives)

    def owner(self) -> NounPhrase | Name:
        """Somebody to whom a thing belongs, in the singular."""
        if self.chance.happens(45):
            return self.name()
        chosen = self.noun_of("family job guest")
        if "family" in kinds_of(chosen) or self.chance.happens(30):
            return NounPhrase(chosen, self.chance.draw(_POSSESSIVE))
        return NounPhrase(chosen)

    def adjectives(self, chosen: Noun, percent: int = 28) -> tuple[Adjective, ...]:
        """None, one, or a quality and a colour."""
        chance = self.chance
        if not chance.happens(percent):
            return ()
        qualities, colours = fitting(chosen, "quality"), fitting(chosen, "colour")
        if colours and chance.happens(35):
            colour = chance.pick(colours)
            return (chance.pick(qualities), colour) if qualities and chance.happens(30) else (colour,)
        return (chance.pick(qualities),) if qualities else ()

    def place(self, groups: str) -> Prepositional:
        """One of the places of the groups; not one that is named already."""
        candidates = when_and_where.places(groups)
        for _ in range(8):
            found = self.chance.pick(candidates).at
            if not self._is_named(found):
                break
        return found

    def goal(self, groups: str) -> Prepositional:
        """The way to one of the places of the groups."""
        return self.chance.pick(when_and_where.places(groups)).to

    def spot(self, moving: bool) -> Prepositional:
        """On, in, under or beside a piece of furniture: where something is, or where it is put."""
        chance = self.chance
        case = "accusative" if moving else "dative"
        roll = chance.below(100)
        if roll < 45:
            return Prepositional("on", "auf", case, self._thing("surface"))
        if roll < 70:
            return Prepositional("into" if moving else "in", "in", case, self._thing("container"))
        if roll < 80:
            return Prepositional("under", "unter", case, self._thing("surface"))
        english, german = chance.pick(when_and_where.BESIDE)
        return Prepositional(english, german, case, self._thing("landmark"))

    def _thing(self, kinds: str) -> NounPhrase:
        chosen = self.noun_of(kinds)
        determiner = self.chance.draw(_SINGULAR)
        return NounPhrase(chosen, determiner, adjectives=self.adjectives(chosen, percent=15))

    def _is_named(self, place: Prepositional) -> bool:
        return isinstance(place.phrase, NounPhrase) and place.phrase.noun in self._named


def anaphor(subject: Phrase) -> Pronoun | None:
    """The pronoun that takes up a person in the next clause, or None where languages would disagree."""
    match subject:
        case Pronoun():
            return subject
        case Name():
            return HE if subject.gender == "m" else SHE
        case NounPhrase() if subject.plural:
            return THEY
        case NounPhrase() if subject.noun is noun("girl"):
            return SHE
        case NounPhrase() if "person" in kinds_of(subject.noun) and subject.noun.gender != "n":
            return HE if subject.noun.gender == "m" else SHE
        case Both():
            return THEY
        case _:
            return None


def is_female(subject: Phrase) -> bool | None:
    """Whether a single person is a woman; None if nobody can tell from the words."""
    pronoun = anaphor(subject)
    return None if pronoun not in (HE, SHE) else pronoun == SHE
