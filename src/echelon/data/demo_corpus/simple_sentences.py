"""Sentences of one clause: statements, questions, commands."""

from __future__ import annotations

from echelon.data.demo_corpus import adverbials, english, german, verbs
from echelon.data.demo_corpus.chance import Weighted
from echelon.data.demo_corpus.deeds import Deeds
from echelon.data.demo_corpus.english import hides_its_tense
from echelon.data.demo_corpus.meaning import YOU, Asked, Clause, NounPhrase, Phrase, Quality, Tense
from echelon.data.demo_corpus.nouns import kinds_of
from echelon.data.demo_corpus.pair import Pair, asked, stated, written
from echelon.data.demo_corpus.phrase_choice import Phrases
from echelon.data.demo_corpus.states import States
from echelon.data.demo_corpus.time_choice import Times

PRESENT_OR_PAST: Weighted[Tense] = Weighted((55, "present"), (45, "past"))


class SimpleSentences:
    """Random sentences of one clause."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.chance = phrases.chance
        self.times = Times(self.chance)
        self.deeds = Deeds(phrases)
        self.states = States(phrases)

    def clause(self) -> Clause:
        """A deed with its tense and time, sometimes negated."""
        negated = self.chance.happens(16)
        return self.times.settle(self.deeds.any(plain=negated), negated)

    def state(self) -> Clause:
        """Something or somebody is so, in the present or past, sometimes negated."""
        clause = self.states.whereabouts() if self.chance.happens(18) else self.states.quality()
        graded = isinstance(clause.complement, Quality) and clause.complement.degree in ("too", "quite")
        negated = not graded and self.chance.happens(18)
        return clause._replace(tense=self.chance.draw(PRESENT_OR_PAST), negated=negated)

    def telling(self) -> Pair:
        """The man buys a book."""
        return stated(self.clause())

    def asking(self) -> Pair:
        """Does the man buy a book?"""
        clause = self.clause() if self.chance.happens(75) else self.state()
        return asked(clause._replace(time_first=False))

    def asking_for(self) -> Pair:
        """What does the man buy? Who buys the book? When, where, why?"""
        return asked(self.asking_clause())

    def describing(self) -> Pair:
        """The dog is very old."""
        return stated(self.state())

    def measuring(self) -> Pair:
        """The coat costs ninety euros."""
        return stated(self.states.measured())

    def naming_a_profession(self) -> Pair:
        """Anna wants to become a doctor."""
        return stated(self.states.profession())

    def comparing_with_all(self) -> Pair:
        """This is the oldest church in the city."""
        return stated(self.states.superlative())

    def existing(self) -> Pair:
        """There is a museum in the city."""
        clause = self.states.existence()
        return asked(clause) if self.chance.happens(25) else stated(clause)

    def commanding(self) -> Pair:
        """Open the window!"""
        negated = self.chance.happens(25)
        clause = self.deeds.deed(YOU, plain=True)._replace(negated=negated)
        please = not negated and self.chance.happens(35)
        opening = "do not " if negated else ("please " if please else "")
        return written(opening + english.infinitive(clause), german.command(clause, please), "!")

    # --- Questions that ask for something ---

    def asking_clause(self) -> Clause:
        """A clause with something in it that is asked for; direct or indirect questions are made of it."""
        clause = self.states.whereabouts() if self.chance.happens(8) else self.deeds.any(plain=True)
        clause = clause._replace(tense=self.chance.draw(PRESENT_OR_PAST))
        roll = self.chance.below(100)
        if roll < 18 and clause.verb.subject.startswith("person"):
            clause = clause._replace(subject=Asked("who"))
        elif roll < 68 and clause.objects:
            clause = self._asking_for_object(clause, clause.objects[-1])
        else:
            clause = self._asking_for_adverbial(clause)
        hidden = clause.tense == "past" and hides_its_tense(clause.verb, clause.subject)
        return clause._replace(tense="present") if hidden else clause

    def _asking_for_object(self, clause: Clause, thing: Phrase) -> Clause:
        answer: Asked | NounPhrase = Asked("who")
        if isinstance(thing, NounPhrase) and "person" not in kinds_of(thing.noun):
            answer = self._asked_thing(clause, thing)
        return clause._replace(objects=(*clause.objects[:-1], answer))

    def _asked_thing(self, clause: Clause, thing: NounPhrase) -> Asked | NounPhrase:
        """What, which things or how many things; was has no dative, so that a noun takes its place."""
        if thing.plural and clause.verb.governs == "A" and self.chance.happens(40):
            return NounPhrase(thing.noun, "how many", plural=True)
        if clause.verb.governs == "D" or (not thing.noun.is_mass and self.chance.happens(35)):
            return NounPhrase(thing.noun, "which", thing.plural)
        return Asked("what")

    def _asking_for_adverbial(self, clause: Clause) -> Clause:
        if clause.place and self.chance.happens(70):
            return clause._replace(asked=adverbials.WHERE, place=None)
        if clause.goal and clause.verb is not verbs.COME_BACK and self.chance.happens(60):
            return clause._replace(asked=adverbials.WHERE_TO, goal=None)
        words = [adverbials.WHY]
        if not clause.verb.stative:
            words += [adverbials.WHEN, adverbials.HOW_OFTEN]
        if clause.verb.lasts and clause.tense == "past":
            words += [adverbials.HOW_LONG] * 2
        return clause._replace(asked=self.chance.pick(words))
