"""Who and what: random phrases that make sense.

Nouns are picked from the kinds that a verb accepts, adjectives from those that fit the noun. No sentence
names the same thing twice.
"""

from __future__ import annotations

from functools import cache

from echelon.data.demo_corpus import adverbials as when_and_where
from echelon.data.demo_corpus.adjectives import Adjective, fitting
from echelon.data.demo_corpus.chance import Chance, Weighted
from echelon.data.demo_corpus.meaning import (
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
from echelon.data.demo_corpus.nouns import Noun, kinds_of, noun, nouns_of
from echelon.data.demo_corpus.verbs import GrammaticalCase

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
    (42, "the"), (15, ""), (3, "my"), (3, "your"), (3, "his"), (3, "her"), (2, "our"), (2, "their"),
    (7, "this"), (3, "both"), (7, "many"), (7, "some"), (4, "all"), (4, "several"),
)  # fmt: skip
_PLURAL_KNOWN: Weighted[Determiner] = Weighted(
    (60, "the"), (5, "my"), (5, "our"), (10, "this"), (8, "all"), (5, "both")
)
_MASS: Weighted[Determiner] = Weighted((50, ""), (38, "the"), (4, "my"), (4, "his"), (4, "her"))
_POSSESSIVE: Weighted[Determiner] = Weighted(
    (30, "my"), (15, "your"), (15, "his"), (15, "her"), (15, "our"), (10, "their")
)
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")
_WITHOUT_QUANTITY = ("", "the", "a", "this", *_POSSESSIVES)
_ALWAYS_ONE = {"parent"}
# Nobody says `my king` or `my forest`, unless the noun is marked as somebody's.
_NOBODYS = {"person", "wild", "settlement", "stop", "public", "building", "outdoors", "weather"}


def _allowed(drawn: Determiner, kinds: frozenset[str], plain: bool) -> Determiner:
    """The determiner, or `the` where it would not make sense: my king, every man does not."""
    if drawn in _POSSESSIVES and kinds & _NOBODYS and "mine" not in kinds:
        return "the"
    return "the" if plain and drawn not in _WITHOUT_QUANTITY else drawn


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
            return Both(self.name(), self.noun_phrase(first, plain=True, singular=True))
        return Both(self.name(), self.name())

    def noun_phrase(
        self, chosen: Noun, is_subject: bool = False, plain: bool = False, singular: bool = False
    ) -> NounPhrase:
        """A phrase about a noun, in either number unless it is to be `singular`."""
        chance = self.chance
        kinds = kinds_of(chosen)
        if "weather" in kinds:
            return NounPhrase(chosen)
        if chosen.is_mass:
            return NounPhrase(chosen, chance.draw(_MASS), adjectives=self.adjectives(chosen))
        plural = not singular and not kinds & _ALWAYS_ONE and chance.happens(22)
        if "family" in kinds:
            count = chance.between(2, 4) if plural and not plain and chance.happens(30) else 0
            return NounPhrase(chosen, chance.draw(_POSSESSIVE), plural, self.adjectives(chosen), count)
        if plural:
            return self._plural(chosen, is_subject, plain)
        determiner = _allowed(chance.draw(_SINGULAR_KNOWN if is_subject else _SINGULAR), kinds, plain)
        owner = self.owner() if determiner == "the" and _ownable(chosen) and chance.happens(12) else None
        return NounPhrase(chosen, determiner, adjectives=self.adjectives(chosen), owner=owner)

    def _plural(self, chosen: Noun, is_subject: bool, plain: bool) -> NounPhrase:
        chance = self.chance
        adjectives = self.adjectives(chosen)
        if not plain and chance.happens(18):
            determiner: Determiner = "the" if is_subject or chance.happens(25) else ""
            count = chance.between(2, 12) if chance.happens(88) else chance.between(13, 99)
            return NounPhrase(chosen, determiner, plural=True, adjectives=adjectives, number=count)
        drawn = chance.draw(_PLURAL_KNOWN if is_subject else _PLURAL)
        determiner = _allowed(drawn, kinds_of(chosen), plain)
        return NounPhrase(chosen, determiner, plural=True, adjectives=adjectives)

    def owner(self) -> NounPhrase | Name:
        """Somebody to whom a thing belongs, in the singular."""
        if self.chance.happens(45):
            return self.name()
        chosen = self.noun_of("family job guest")
        kinds = kinds_of(chosen)
        if "family" in kinds or ("mine" in kinds and self.chance.happens(30)):
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

    def spot(self, moving: bool, upright: bool) -> Prepositional:
        """On, in, under or beside a piece of furniture: where a thing is, or where it is put.

        What stands `upright` is not in a bag.
        """
        chance = self.chance
        case: GrammaticalCase = "accusative" if moving else "dative"
        roll = chance.below(100)
        if roll < (70 if upright else 45):
            return Prepositional("on", "auf", case, self._thing("surface"))
        if roll < 70:
            return Prepositional("into" if moving else "in", "in", case, self._thing("container"))
        if roll < 80:
            return Prepositional("under", "unter", case, self._thing("surface"))
        english, german = chance.pick(when_and_where.BESIDE)
        return Prepositional(english, german, case, self._thing("landmark"))

    def seat(self, moving: bool) -> Prepositional:
        """On a chair, under a tree: where one sits, or sits down."""
        case: GrammaticalCase = "accusative" if moving else "dative"
        if self.chance.happens(70):
            return Prepositional("on", "auf", case, self._thing("seat"))
        english, german = self.chance.pick((*when_and_where.BESIDE, ("under", "unter")))
        return Prepositional(english, german, case, self._thing("trunk"))

    def _thing(self, kinds: str) -> NounPhrase:
        chosen = self.noun_of(kinds)
        determiner = self.chance.draw(_SINGULAR)
        return NounPhrase(chosen, determiner, adjectives=self.adjectives(chosen, percent=15))

    def _is_named(self, place: Prepositional) -> bool:
        return isinstance(place.phrase, NounPhrase) and place.phrase.noun in self._named


def anaphor(subject: Phrase) -> Pronoun | None:
    """The pronoun that takes up a person in the next clause, or None if the languages would disagree."""
    if isinstance(subject, Pronoun):
        return subject
    if isinstance(subject, Both):
        return THEY
    if isinstance(subject, Name):
        return HE if subject.gender == "m" else SHE
    if isinstance(subject, NounPhrase) and "person" in kinds_of(subject.noun):
        if subject.plural:
            return THEY
        gender = "f" if subject.noun is noun("girl") else subject.noun.gender
        return {"m": HE, "f": SHE}.get(gender)
    return None


def is_female(subject: Phrase) -> bool | None:
    """Whether a single person is a woman; None if nobody can tell from the words."""
    pronoun = anaphor(subject)
    return None if pronoun not in (HE, SHE) else pronoun == SHE
