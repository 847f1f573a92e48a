"""German clauses: what goes where.

A clause is laid out in the fields of German grammar:

    front  | finite | middle                           | closing    | end
    Morgen | wird   | sie ihrem Bruder das Buch        | mitbringen | , das er sucht
             liest  | der Junge heute im Garten ein Buch
    dass   |        | der Junge das Fenster            | aufgemacht hat

The middle field goes: subject, pronouns, time, dative, definite accusative, nicht, manner, company, place,
indefinite accusative, prepositional object, goal, complement.
"""

from __future__ import annotations

from typing import NamedTuple

from echelon.data.demo_corpus.german_forms import (
    full_infinitive,
    full_participle,
    imperative,
    present,
    preterite,
    reflexive,
)
from echelon.data.demo_corpus.german_phrases import (
    adverbial,
    after_preposition,
    complement,
    is_indefinite,
    phrase,
)
from echelon.data.demo_corpus.meaning import (
    ALREADY,
    NEVER_YET,
    YET,
    Clause,
    Modal,
    NounPhrase,
    Phrase,
    Profession,
    Pronoun,
    is_fronted,
    stands_for_head,
)
from echelon.data.demo_corpus.verbs import THERE_IS, WEATHER, GrammaticalCase, Verb

_MODALS: dict[Modal, str] = {
    "can": "können",
    "must": "müssen",
    "may": "dürfen",
    "should": "sollen",
    "want to": "wollen",
    "would like to": "möchten",
}
_LATE_ADVERBS = (ALREADY, NEVER_YET, YET)
_INDEFINITE = ("", "a", "no", "many", "some", "several")


class _Conjugated(NamedTuple):
    """The finite verb and what closes the clause: a particle, which fuses with it at the end, or the rest."""

    finite: str
    closing: str = ""
    particle: str = ""


class _Fields(NamedTuple):
    """The parts of a clause that the word orders arrange."""

    fronted: str
    """A question word or relative pronoun with what it takes along, or ""."""
    subject: str
    """Empty if the subject is what is fronted."""
    leading: list[str]
    """What comes before a subject in the middle field: sich, and the dative of gefallen."""
    pronouns: list[str]
    time: str
    middle: list[str]
    verb: _Conjugated
    end: str
    """The relative clause of an object, which the closing verb would cut off from its noun."""

    def middle_field(self, subject: bool = True, time: bool = True) -> list[str]:
        """The middle field, with the subject and the time unless they are in front."""
        return [
            *self.leading,
            self.subject if subject else "",
            *self.pronouns,
            self.time if time else "",
            *self.middle,
        ]


def statement(clause: Clause) -> str:
    """A main clause with the verb second, after the subject or the time. No capital, no full stop."""
    fields = _fields(clause)
    when_first = clause.time_first and clause.time is not None
    front = fields.time if when_first else fields.subject
    middle = fields.middle_field(subject=when_first, time=not when_first)
    return _join(front, fields.verb.finite, *middle, fields.verb.closing, fields.verb.particle, fields.end)


def question(clause: Clause) -> str:
    """A question with the verb first, or second after a question word."""
    fields = _fields(clause)
    verb = fields.verb
    return _join(fields.fronted, verb.finite, *fields.middle_field(), verb.closing, verb.particle, fields.end)


def inverted(clause: Clause) -> str:
    """A main clause that follows a subordinate one: `Wenn es regnet, bleibt er zu Hause`."""
    return question(clause)


def continuation(clause: Clause) -> str:
    """A main clause after `und` that shares the subject of the one before, and leaves it unsaid."""
    fields = _fields(clause)
    middle = fields.middle_field(subject=False)
    return _join(fields.verb.finite, *middle, fields.verb.closing, fields.verb.particle, fields.end)


def verb_final(clause: Clause) -> str:
    """A subordinate clause without its conjunction, a relative clause or an indirect question."""
    fields = _fields(clause)
    verb = fields.verb
    closing = (verb.closing, verb.particle + verb.finite)
    return _join(fields.fronted, *fields.middle_field(), *closing, fields.end)


def zu_infinitive(clause: Clause) -> str:
    """An infinitive clause with zu, its subject unsaid: `das Fenster aufzumachen`."""
    fields = _fields(clause)
    return _join(*fields.middle_field(subject=False), full_infinitive(clause.verb, zu=True), fields.end)


def with_infinitive(matrix: Clause, clause: Clause) -> str:
    """A statement and the infinitive that depends on it, without a comma if it is a lone infinitive."""
    infinitive = zu_infinitive(clause)
    alone = infinitive == full_infinitive(clause.verb, zu=True)
    return f"{statement(matrix)}{'' if alone else ','} {infinitive}"


def command(clause: Clause, please: bool) -> str:
    """A command to one friend."""
    fields = _fields(clause)
    verb = clause.verb
    opening = (imperative(verb.infinitive), *fields.leading, *fields.pronouns, "bitte" if please else "")
    return _join(*opening, fields.time, *fields.middle, verb.particle, fields.end)


def _join(*words: str) -> str:
    return " ".join(filter(None, words)).replace(" ,", ",").replace(",,", ",")


# --- The verb ---


def _conjugate(clause: Clause, subject: Phrase) -> _Conjugated:
    verb = clause.verb
    person = 3 if subject.plural else subject.person - 1
    if clause.modal in _MODALS:
        modal = _MODALS[clause.modal]
        forms = preterite(modal) if clause.tense == "past" else present(modal)
        assert forms is not None, f"{modal} has no simple past"
        return _Conjugated(forms[person], full_infinitive(verb))
    if clause.tense == "future":
        return _Conjugated(present("werden")[person], full_infinitive(verb))
    if clause.tense in ("past", "perfect"):
        return _told(verb, person)
    return _Conjugated(present(verb.infinitive)[person], particle=verb.particle)


def _told(verb: Verb, person: int) -> _Conjugated:
    """The past: simple for the few verbs that are told so, otherwise the perfect."""
    forms = preterite(verb.infinitive) if verb.infinitive != "geben" or verb is THERE_IS else None
    if forms:
        return _Conjugated(forms[person])
    auxiliary = present("sein" if verb.sein else "haben")
    return _Conjugated(auxiliary[person], full_participle(verb))


# --- The fields ---


class _Argument(NamedTuple):
    meaning: Phrase
    case: GrammaticalCase
    preposition: str = ""


def _arguments(clause: Clause) -> tuple[Phrase, list[_Argument]]:
    """The German subject and the other arguments."""
    if clause.verb.swapped:
        return clause.objects[0], [_Argument(clause.subject, "dative")]
    pairs = zip(clause.objects, clause.verb.government, strict=True)
    return clause.subject, [_Argument(meaning, case, preposition) for meaning, (preposition, case) in pairs]


def _with_relative(meaning: Phrase, case: GrammaticalCase) -> str:
    text = phrase(meaning, case)
    if isinstance(meaning, NounPhrase) and meaning.relative:
        return f"{text}, {verb_final(meaning.relative)},"
    return text


def _end(arguments: list[_Argument]) -> str:
    for argument in arguments:
        if isinstance(argument.meaning, NounPhrase) and argument.meaning.relative:
            return f", {verb_final(argument.meaning.relative)},"
    return ""


class _Placed:
    """The arguments of a clause, sorted by where in the middle field they stand."""

    def __init__(self, clause: Clause, arguments: list[_Argument]) -> None:
        self.fronted = clause.asked.german if clause.asked else ""
        self.leading: list[str] = []
        self.accusative_pronouns: list[str] = []
        self.dative_pronouns: list[str] = []
        self.definite: list[str] = []
        self.indefinite: list[str] = []
        self.prepositional: list[str] = []
        self.has_kein = False
        for argument in arguments:
            self._place(clause, argument)

    def _place(self, clause: Clause, argument: _Argument) -> None:
        meaning, case, preposition = argument
        if preposition:
            text = after_preposition(preposition, meaning, case)
            if is_fronted(meaning):
                self.fronted = text
            else:
                self.prepositional.append(text)
            return
        # Not `gern kein`: it is the liking that is denied.
        turns_to_kein = clause.negated and clause.modal != "like to" and is_indefinite(meaning)
        self.has_kein |= turns_to_kein
        text = phrase(meaning, case, turns_to_kein)
        if is_fronted(meaning):
            self.fronted = text
        elif clause.verb.swapped:
            self.leading.append(text)
        elif isinstance(meaning, Pronoun):
            (self.accusative_pronouns if case == "accusative" else self.dative_pronouns).append(text)
        elif case == "accusative" and isinstance(meaning, NounPhrase) and _is_new(meaning):
            self.indefinite.append(text)
        else:
            self.definite.append(text)


def _is_new(meaning: NounPhrase) -> bool:
    return meaning.determiner in _INDEFINITE and meaning.owner is None


def _fields(clause: Clause) -> _Fields:
    subject, arguments = _arguments(clause)
    placed = _Placed(clause, arguments)
    pronouns = placed.accusative_pronouns + placed.dative_pronouns
    if clause.verb.is_reflexive:
        itself = reflexive(subject.person, subject.plural)
        (pronouns if isinstance(subject, Pronoun) else placed.leading).insert(0, itself)
    subject_text = _with_relative(subject, "nominative")
    if is_fronted(subject):
        placed.fronted, subject_text = subject_text, ""
    if clause.place and stands_for_head(clause.place):
        placed.fronted = adverbial(clause.place)
    return _Fields(
        fronted=placed.fronted,
        subject=subject_text,
        leading=placed.leading,
        pronouns=pronouns,
        time=adverbial(clause.time) if clause.time else "",
        middle=_middle(clause, placed),
        verb=_conjugate(clause, subject),
        end=_end(arguments),
    )


def _middle(clause: Clause, placed: _Placed) -> list[str]:
    middle: list[str] = []
    if clause.tense == "progressive" and clause.verb not in WEATHER:
        middle.append("gerade")
    late = clause.adverb in _LATE_ADVERBS
    if clause.adverb and not late:
        middle.append(clause.adverb.german)
    middle += placed.definite
    if clause.adverb and late:
        middle.append(clause.adverb.german)
    kein_complement = clause.negated and _takes_kein(clause)
    if clause.negated and not placed.has_kein and not kein_complement:
        middle.append("nicht")
    if clause.modal == "like to":
        middle.append("gern")
    spots = (clause.manner, clause.company, clause.place)
    middle += [adverbial(spot) for spot in spots if spot and not stands_for_head(spot)]
    middle += placed.indefinite
    middle += placed.prepositional
    if clause.goal:
        middle.append(adverbial(clause.goal))
    middle.append(clause.verb.tail[1])
    if clause.complement:
        middle.append(complement(clause.complement, kein_complement))
    return middle


def _takes_kein(clause: Clause) -> bool:
    meaning = clause.complement
    return isinstance(meaning, Profession) or (isinstance(meaning, NounPhrase) and is_indefinite(meaning))
