"""When: a tense, perhaps a modal, and a time that suits them, for a clause that has none."""

from __future__ import annotations

from collections.abc import Callable

from echelon.data.demo_corpus import adverbials
from echelon.data.demo_corpus.chance import Chance, Weighted
from echelon.data.demo_corpus.english import hides_its_tense
from echelon.data.demo_corpus.english_forms import plural
from echelon.data.demo_corpus.german_forms import noun_form
from echelon.data.demo_corpus.meaning import (
    ALREADY,
    NEVER_YET,
    YET,
    Adverbial,
    Clause,
    Modal,
    NounPhrase,
    Prepositional,
    Tense,
)
from echelon.data.demo_corpus.nouns import noun, nouns_of
from echelon.data.demo_corpus.numbers import english_cardinal, english_clock, german_cardinal, german_clock

_TENSES: Weighted[Tense] = Weighted(
    (38, "present"), (34, "past"), (13, "future"), (10, "progressive"), (8, "perfect")
)
_PRESENT_OR_PAST: Weighted[Tense] = Weighted((55, "present"), (45, "past"))
_MODALS: Weighted[Modal] = Weighted(
    (20, "can"),
    (18, "must"),
    (10, "may"),
    (14, "should"),
    (18, "want to"),
    (14, "would like to"),
    (12, "like to"),
)
_WITHOUT_A_PAST = ("should", "would like to")
_UNITS = ("hour", "day", "week", "month", "year")
# What a time of day can follow: today at three o'clock.
_DAYS = ("today", "tomorrow", "yesterday", "every day", *(english for english, _ in adverbials.WEEKDAYS))


class Times:
    """Random tenses and times."""

    def __init__(self, chance: Chance) -> None:
        self.chance = chance

    def settle(self, clause: Clause, negated: bool = False) -> Clause:
        """The clause in a tense or with a modal, perhaps with a time or a frequency."""
        clause = clause._replace(negated=negated)
        if self.chance.happens(20) and clause.verb.is_willed:
            return self.with_modal(clause)
        tense = self.chance.draw(_TENSES)
        if tense == "perfect" and not clause.verb.stative:
            return self._with_perfect(clause)
        return self.in_tense(clause, tense)

    def in_tense(self, clause: Clause, tense: Tense) -> Clause:
        """The clause in that tense, or in the present if its verb cannot show it; perhaps with a time."""
        if tense == "perfect" or (tense == "progressive" and (clause.verb.stative or clause.negated)):
            tense = "present"
        if tense == "future" and clause.verb.stative:
            tense = "past"
        if tense == "past" and not clause.negated and hides_its_tense(clause.verb, clause.subject):
            tense = "present"
        return self._with_time(clause._replace(tense=tense))

    def with_modal(self, clause: Clause) -> Clause:
        """The clause with a modal, in the present or the past."""
        modal = self.chance.draw(_MODALS)
        tense: Tense = "present" if modal in _WITHOUT_A_PAST else self.chance.draw(_PRESENT_OR_PAST)
        clause = clause._replace(modal=modal, tense=tense)
        if modal == "like to":
            return clause
        if tense == "past":
            return self._timed(clause, 35, self.past_time)
        return self._timed(clause, 25, self.coming_time)

    def _with_perfect(self, clause: Clause) -> Clause:
        said = ALREADY if self.chance.happens(60) else NEVER_YET
        return clause._replace(tense="perfect", adverb=YET if clause.negated else said, manner=None)

    def _with_time(self, clause: Clause) -> Clause:
        tense, negated = clause.tense, clause.negated
        if tense == "progressive" or (clause.verb.stative and not _happened(clause)):
            return clause
        if tense != "future" and not negated and not clause.manner and self.chance.happens(14):
            return clause._replace(adverb=self.chance.pick(adverbials.FREQUENCIES))
        if tense == "past":
            length = self._length(clause)
            return clause._replace(time=length) if length else self._timed(clause, 50, self.past_time)
        if tense == "future":
            return self._timed(clause, 60, self.coming_time)
        return (
            self._timed(clause, 15, self.current_time)
            if negated
            else self._timed(clause, 40, self.usual_time)
        )

    def _timed(self, clause: Clause, percent: int, time: Callable[[], Adverbial | Prepositional]) -> Clause:
        if not self.chance.happens(percent):
            return clause
        return clause._replace(time=time(), time_first=self.chance.happens(45))

    def usual_time(self) -> Adverbial | Prepositional:
        """Today, every day, at eight o'clock."""
        if self.chance.happens(20):
            return self.current_time()
        return self._clocked(self.chance.pick(adverbials.HABITUAL))

    def current_time(self) -> Adverbial:
        """Today, now."""
        return self.chance.pick(adverbials.PRESENT)

    def past_time(self) -> Adverbial | Prepositional:
        """Yesterday, last week, two days ago, in 1998."""
        roll = self.chance.below(100)
        if roll < 12:
            count, unit, german = self._count()
            return Adverbial(f"{count} {unit} ago", f"vor {german}")
        if roll < 18:
            year = self.chance.between(1950, 2020)
            return Adverbial(f"in {year}", f"im Jahr {year}")
        return self._clocked(self._event_time(6) or self.chance.pick(adverbials.PAST))

    def coming_time(self) -> Adverbial | Prepositional:
        """Tomorrow, next week, in two days."""
        if self.chance.happens(12):
            count, unit, german = self._count()
            return Adverbial(f"in {count} {unit}", f"in {german}")
        return self._clocked(self._event_time(6) or self.chance.pick(adverbials.FUTURE))

    def _event_time(self, percent: int) -> Prepositional | None:
        if not self.chance.happens(percent):
            return None
        event = NounPhrase(self.chance.pick(nouns_of("event")))
        if self.chance.happens(50):
            return Prepositional("after", "nach", "dative", event)
        return Prepositional("before", "vor", "dative", event)

    def _clocked(self, time: Adverbial | Prepositional) -> Adverbial | Prepositional:
        """Perhaps with the time of day, if the time is a day."""
        if isinstance(time, Prepositional) or not self.chance.happens(25):
            return time
        hour, quarter = self.chance.between(1, 12), self.chance.below(8)
        quarter = quarter if quarter < 4 else 0
        english, german = f"at {english_clock(hour, quarter)}", f"um {german_clock(hour, quarter)}"
        if time.english.endswith(_DAYS):
            return Adverbial(f"{time.english} {english}", f"{time.german} {german}")
        return Adverbial(english, german)

    def _length(self, clause: Clause) -> Adverbial | None:
        """For three hours, for what can last."""
        unit = clause.verb.lasts
        if not unit or clause.negated or not self.chance.happens(25):
            return None
        count = self.chance.between(2, 12)
        singular = noun(unit)
        english, german = plural(unit), noun_form(singular, "accusative", plural=True)
        return Adverbial(
            f"for {english_cardinal(count)} {english}", f"{german_cardinal(count)} {german} lang"
        )

    def _count(self) -> tuple[str, str, str]:
        count, unit = self.chance.between(2, 12), self.chance.pick(_UNITS)
        german = noun_form(noun(unit), "dative", plural=True)
        return english_cardinal(count), plural(unit), f"{german_cardinal(count)} {german}"


def _happened(clause: Clause) -> bool:
    """Whether a verb without a progressive still tells of something with a time: she moved in May."""
    happens = clause.goal or clause.place or clause.verb.english in ("see", "hear")
    return clause.tense == "past" and bool(happens)
