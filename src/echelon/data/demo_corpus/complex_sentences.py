"""Sentences of two clauses: relative, reported, causal, temporal, infinitive, and joined by and or but."""

from __future__ import annotations

from echelon.data.demo_corpus import english, german, verbs
from echelon.data.demo_corpus.chance import Weighted
from echelon.data.demo_corpus.english import hides_its_tense
from echelon.data.demo_corpus.meaning import (
    IT,
    THEY,
    Clause,
    Determiner,
    Modal,
    NounPhrase,
    Phrase,
    Quality,
    Tense,
)
from echelon.data.demo_corpus.nouns import kinds_of, noun
from echelon.data.demo_corpus.pair import Pair, stated, written
from echelon.data.demo_corpus.phrase_choice import Phrases, anaphor
from echelon.data.demo_corpus.relatives import Relatives
from echelon.data.demo_corpus.simple_sentences import PRESENT_OR_PAST, SimpleSentences

_DUTIES: Weighted[Modal] = Weighted((50, "must"), (25, "want to"), (25, "can"))


class ComplexSentences:
    """Random sentences of two clauses."""

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = phrases
        self.chance = phrases.chance
        self.simple = SimpleSentences(phrases)
        self.deeds = self.simple.deeds
        self.states = self.simple.states
        self.times = self.simple.times
        self.relatives = Relatives(phrases)

    # --- Relative clauses ---

    def about_somebody(self) -> Pair:
        """The man who lives in Berlin buys a book."""
        while True:
            clause = self.simple.clause() if self.chance.happens(60) else self.simple.state()
            if isinstance(clause.subject, NounPhrase) and _can_be_described(clause.subject):
                described = self.relatives.about(_known(clause.subject), clause.verb)
                return stated(clause._replace(subject=described))
            self.phrases.begin()

    def about_something(self) -> Pair:
        """The man buys the book that the teacher has written."""
        while True:
            clause = self.simple.clause()
            last = clause.objects[-1] if clause.objects else None
            elaborate = (
                clause.goal
                or clause.place
                or clause.company
                or clause.manner
                or clause.verb.swapped
                or clause.verb.to
            )
            if isinstance(last, NounPhrase) and _can_be_described(last) and not elaborate:
                described = self.relatives.about(_known(last), clause.verb)
                return stated(clause._replace(objects=(*clause.objects[:-1], described), time=None))
            self.phrases.begin()

    # --- Reported clauses ---

    def reporting(self) -> Pair:
        """The teacher knows that the man buys a book."""
        verb = self.chance.pick(verbs.SAYING)
        subject = self.phrases.subject("person", plain=True)
        if self.chance.happens(15):
            listener = self.phrases.object("person", subject, plain=True)
            matrix = Clause(subject, verbs.TELL, (listener,))
        else:
            negated = verb.stative and self.chance.happens(15)
            matrix = Clause(subject, verb, negated=negated)
        matrix = matrix._replace(tense=self.chance.draw(PRESENT_OR_PAST))
        inner = self._inner()
        return written(
            f"{english.statement(matrix)} that {english.statement(inner)}",
            f"{german.statement(matrix)}, dass {german.verb_final(inner)}",
            ".",
        )

    def _inner(self) -> Clause:
        clause = self.simple.clause() if self.chance.happens(75) else self.simple.state()
        return clause._replace(time_first=False)

    def wondering(self) -> Pair:
        """The teacher does not know whether the man buys a book, or what he buys."""
        subject = self.phrases.subject("person", plain=True)
        roll = self.chance.below(3)
        if roll == 0:
            listener = self.phrases.object("person", subject, plain=True)
            matrix = Clause(subject, verbs.ASK, (listener,), tense=self.chance.draw(PRESENT_OR_PAST))
        elif roll == 1:
            matrix = Clause(subject, verbs.KNOW, negated=True, tense=self.chance.draw(PRESENT_OR_PAST))
        else:
            matrix = Clause(subject, verbs.KNOW, modal="would like to")
        opening = english.statement(matrix), german.statement(matrix)
        if self.chance.happens(50):
            inner = self._inner()
            said = f"whether {english.statement(inner)}", f"ob {german.verb_final(inner)}"
        else:
            inner = self.simple.asking_clause()
            said = english.relative(inner), german.verb_final(inner)
        return written(f"{opening[0]} {said[0]}", f"{opening[1]}, {said[1]}", ".")

    # --- Reasons and times ---

    def reasoning(self) -> Pair:
        """The man stays at home because he is tired."""
        main = self.simple.clause()
        while anaphor(main.subject) is None or (main.verb in verbs.STAYING and main.company):
            # Things have no moods; and who stays because of the rain needs no other reason.
            self.phrases.begin()
            main = self.simple.clause()
        main = main._replace(time_first=False)
        tense: Tense = "past" if main.tense in ("past", "perfect") else "present"
        reason = self._reason(main.subject, tense)
        conjunction = ("because", "weil") if self.chance.happens(65) else ("although", "obwohl")
        return self._subordinated(main, reason, conjunction)

    def _reason(self, somebody: Phrase, tense: Tense) -> Clause:
        subject = anaphor(somebody) or self.phrases.subject("person", plain=True)
        roll = self.chance.below(100)
        if roll < 50:
            return self.states.mood(subject)._replace(tense=tense)
        if roll < 62:
            return self.states.weather("past" if tense == "past" else "progressive")
        if roll < 75:
            lacking = NounPhrase(noun(self.chance.pick(("time", "money"))), "no")
            return Clause(subject, verbs.HAVE, (lacking,), tense)
        modal = self.chance.draw(_DUTIES)
        return self.deeds.deed(subject)._replace(modal=modal, tense=tense)

    def _subordinated(self, main: Clause, clause: Clause, conjunction: tuple[str, str]) -> Pair:
        """Main clause first, or the subordinate one, with inversion in German."""
        if self.chance.happens(65):
            return _main_first(main, clause, conjunction)
        opening, german_opening = conjunction
        if clause.subject == anaphor(main.subject):
            main, clause = main._replace(subject=clause.subject), clause._replace(subject=main.subject)
        return written(
            f"{opening} {english.statement(clause)}, {english.statement(main)}",
            f"{german_opening} {german.verb_final(clause)}, {german.inverted(main)}",
            ".",
        )

    def timing(self) -> Pair:
        """When it rains, the man stays at home."""
        roll = self.chance.below(100)
        if roll < 30:
            return self._whenever()
        if roll < 50:
            return self._if()
        if roll < 70:
            return self._once()
        return self._meanwhile()

    def _whenever(self) -> Pair:
        main = self.deeds.deed()
        return self._subordinated(main, self._occasion(main.subject), ("when", "wenn"))

    def _if(self) -> Pair:
        main = self.deeds.deed()._replace(tense="future")
        return self._subordinated(main, self._occasion(main.subject), ("if", "wenn"))

    def _occasion(self, somebody: Phrase) -> Clause:
        subject = anaphor(somebody) or self.phrases.subject("person", plain=True)
        roll = self.chance.below(100)
        if roll < 30:
            return self.states.weather("present")
        if roll < 65:
            return self.states.mood(subject)
        lacking = NounPhrase(
            noun(self.chance.pick(("time", "money"))), "no" if self.chance.happens(50) else ""
        )
        return Clause(subject, verbs.HAVE, (lacking,))

    def _once(self) -> Pair:
        """When he was young, he lived in Berlin: als, not wenn."""
        main = self.deeds.deed()
        main = self.times.in_tense(main, "past")._replace(time=None, adverb=None)
        if main.tense != "past":
            return self._once()
        subject = anaphor(main.subject) or self.phrases.subject("person", plain=True)
        if self.chance.happens(50):
            occasion = self.states.mood(subject)
        else:
            occasion = self._another_deed(main, subject)
            if hides_its_tense(occasion.verb, subject):
                return self._once()
        return self._subordinated(main, occasion._replace(tense="past"), ("when", "als"))

    def _another_deed(self, first: Clause, subject: Phrase | None = None) -> Clause:
        """A deed with another verb than the first."""
        second = self.deeds.deed(subject)
        while second.verb is first.verb:
            second = self.deeds.deed(subject)
        return second

    def _meanwhile(self) -> Pair:
        """Before he goes home, he opens the window; while his brother sleeps, he reads."""
        main = self.deeds.deed()
        if self.chance.happens(50):
            subject = anaphor(main.subject) or self.phrases.subject("person", plain=True)
            return self._subordinated(main, self._another_deed(main, subject), ("before", "bevor"))
        return self._subordinated(main, self._another_deed(main), ("while", "während"))

    def taking_up(self) -> Pair:
        """The man buys the table because it is cheap: weil er billig ist."""
        deed, adjective = self.deeds.with_reason()
        main = self.times.in_tense(deed, self.chance.draw(PRESENT_OR_PAST))._replace(time=None)
        thing = deed.objects[0]
        assert isinstance(thing, NounPhrase)
        taken_up = THEY if thing.plural else IT[thing.noun.gender]
        reason = Clause(taken_up, verbs.BE, complement=Quality(adjective), tense=main.tense)
        return _main_first(main, reason, ("because", "weil"))

    # --- Infinitives ---

    def intending(self) -> Pair:
        """The man goes to the market in order to buy bread."""
        way, purpose = self.deeds.errand()
        main = self.times.in_tense(way, self.chance.draw(PRESENT_OR_PAST))._replace(adverb=None)
        return written(
            f"{english.statement(main)} in order to {english.infinitive(purpose)}",
            f"{german.statement(main)}, um {german.zu_infinitive(purpose)}",
            ".",
        )

    def attempting(self) -> Pair:
        """The man tries to open the window."""
        subject = self.phrases.subject("person", plain=True)
        matrix = Clause(subject, self.chance.pick(verbs.ATTEMPTING), tense=self.chance.draw(PRESENT_OR_PAST))
        deed = self.deeds.deed(subject)
        return written(
            f"{english.statement(matrix)} to {english.infinitive(deed)}",
            german.with_infinitive(matrix, deed),
            ".",
        )

    # --- And, but ---

    def joining(self) -> Pair:
        """The man opens the window and reads a book; the man is tired, but he must work."""
        roll = self.chance.below(100)
        if roll < 35:
            return self._one_after_the_other()
        if roll < 65:
            return self._but()
        first = self.deeds.deed()
        second = self._another_deed(first)
        return written(
            f"{english.statement(first)}, and {english.statement(second)}",
            f"{german.statement(first)}, und {german.statement(second)}",
            ".",
        )

    def _one_after_the_other(self) -> Pair:
        first = self.deeds.deed()
        second = self._another_deed(first, first.subject)
        return written(
            f"{english.statement(first)} and {english.continuation(second)}",
            f"{german.statement(first)} und {german.continuation(second)}",
            ".",
        )

    def _but(self) -> Pair:
        subject = self.phrases.subject("person", plain=True)
        tense = self.chance.draw(PRESENT_OR_PAST)
        first = self.states.mood(subject)._replace(tense=tense)
        taken_up = anaphor(subject) or self.phrases.name()
        second = self.deeds.deed(taken_up)._replace(modal=self.chance.draw(_DUTIES), tense=tense)
        return written(
            f"{english.statement(first)}, but {english.statement(second)}",
            f"{german.statement(first)}, aber {german.statement(second)}",
            ".",
        )


def _main_first(main: Clause, clause: Clause, conjunction: tuple[str, str]) -> Pair:
    return written(
        f"{english.statement(main)} {conjunction[0]} {english.statement(clause)}",
        f"{german.statement(main)}, {conjunction[1]} {german.verb_final(clause)}",
        ".",
    )


def _can_be_described(phrase: NounPhrase) -> bool:
    return phrase.owner is None and not phrase.noun.is_mass and "family" not in kinds_of(phrase.noun)


def _known(phrase: NounPhrase) -> NounPhrase:
    """The phrase with an article, which a relative clause or a pronoun can take up."""
    determiner: Determiner = "a" if phrase.determiner == "a" else "the"
    return phrase._replace(determiner=determiner)
