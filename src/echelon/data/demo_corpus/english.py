"""English: phrases, and clauses in their word order, with do-support where there is no auxiliary.

time | subject | auxiliary, not | adverb | verb | objects | manner | goal | place | company | time
"""

from __future__ import annotations

from typing import NamedTuple

from echelon.data.demo_corpus.english_forms import article, object_pronoun, plural, verb_forms
from echelon.data.demo_corpus.meaning import (
    YET,
    Adverbial,
    Asked,
    Both,
    Clause,
    Complement,
    Gap,
    Measure,
    Modal,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Profession,
    Pronoun,
    Quality,
    is_fronted,
    stands_for_head,
)
from echelon.data.demo_corpus.nouns import kinds_of
from echelon.data.demo_corpus.numbers import english_cardinal
from echelon.data.demo_corpus.verbs import THERE_IS, Verb

_COMPARED = {"good": "better best", "bad": "worse worst", "shy": "shyer shyest"}
# Two syllables, or fewer than they look, but compared with more and most.
_LONG = ("modern", "honest", "strange", "famous", "useful", "polite", "clever", "simple", "sour")


# --- Phrases ---


def phrase(meaning: Phrase, is_object: bool = False) -> str:
    """A phrase with its relative clause; only pronouns tell subjects from objects."""
    match meaning:
        case NounPhrase():
            return _noun_phrase(meaning)
        case Pronoun():
            return object_pronoun(meaning.english) if is_object else meaning.english
        case Name():
            return meaning.name
        case Both():
            return f"{phrase(meaning.first)} and {phrase(meaning.second)}"
        case Asked():
            return meaning.word
        case Gap():
            is_person = "person" in kinds_of(meaning.noun)
            return ("whom" if is_object else "who") if is_person else "that"


def _noun_phrase(meaning: NounPhrase) -> str:
    words = [english_cardinal(meaning.number)] if meaning.number else []
    degree = superlative if meaning.superlative else str
    words += [degree(adjective.english) for adjective in meaning.adjectives]
    noun = meaning.noun.english
    words.append(plural(noun) if meaning.plural else noun)
    if isinstance(meaning.owner, Gap):
        words.insert(0, "whose")
    elif meaning.owner is not None:
        words.insert(0, f"{phrase(meaning.owner)}'s")
    elif meaning.determiner == "a":
        words.insert(0, article(words[0]))
    elif meaning.determiner == "this":
        words.insert(0, "these" if meaning.plural else "this")
    elif meaning.determiner:
        words.insert(0, meaning.determiner)
    if meaning.spot:
        words.append(adverbial(meaning.spot))
    if meaning.relative:
        words.append(relative(meaning.relative))
    return " ".join(words)


def adverbial(meaning: Adverbial | Prepositional) -> str:
    """An adverbial of either sort."""
    if isinstance(meaning, Adverbial):
        return meaning.english
    return _after_preposition(meaning.english, meaning.phrase)


def _after_preposition(preposition: str, meaning: Phrase) -> str:
    if isinstance(meaning, Gap) and "person" not in kinds_of(meaning.noun):
        return f"{preposition} which"
    return f"{preposition} {phrase(meaning, is_object=True)}"


def _complement(meaning: Complement) -> str:
    match meaning:
        case Quality():
            return _quality(meaning)
        case Profession():
            return f"{article(meaning.noun.english)} {meaning.noun.english}"
        case Measure():
            return f"{english_cardinal(meaning.number)} {meaning.english}"
        case NounPhrase():
            return phrase(meaning)


def _quality(meaning: Quality) -> str:
    word = meaning.adjective.english
    if meaning.comparison is None:
        return f"{meaning.degree} {word}" if meaning.degree else word
    assert meaning.than is not None
    other = phrase(meaning.than)
    return f"{comparative(word)} than {other}" if meaning.comparison == "than" else f"as {word} as {other}"


def comparative(adjective: str) -> str:
    """`bigger`, `happier`, `more famous`."""
    if adjective in _COMPARED:
        return _COMPARED[adjective].split()[0]
    return _short(adjective, "er") or f"more {adjective}"


def superlative(adjective: str) -> str:
    """`biggest`, `happiest`, `most famous`."""
    if adjective in _COMPARED:
        return _COMPARED[adjective].split()[1]
    return _short(adjective, "est") or f"most {adjective}"


def _short(adjective: str, ending: str) -> str:
    """The adjective with an ending, or "" if it is too long to take one."""
    syllables = sum(
        letter in "aeiouy" and (i == 0 or adjective[i - 1] not in "aeiouy")
        for i, letter in enumerate(adjective)
    )
    if adjective.endswith("e"):
        return adjective + ending[1:] if syllables <= 2 and adjective not in _LONG else ""
    if adjective.endswith("y") and syllables <= 2:
        return f"{adjective[:-1]}i{ending}"
    if syllables > 1 or adjective in _LONG:
        return ""
    doubles = adjective[-1] in "bdgnt" and adjective[-2] in "aeiou" and adjective[-3] not in "aeiou"
    return adjective + (adjective[-1] if doubles else "") + ending


# --- Clauses ---


def statement(clause: Clause) -> str:
    """A main or subordinate clause in the order of a statement. No capital, no full stop."""
    return _clause(clause, inverted=False)


def question(clause: Clause) -> str:
    """A direct question."""
    return _clause(clause, inverted=not is_fronted(clause.subject))


def relative(clause: Clause) -> str:
    """A relative clause or an indirect question: the question word first, the rest as a statement."""
    return _clause(clause, inverted=False)


def continuation(clause: Clause) -> str:
    """A clause after `and` that shares the subject of the one before, and leaves it unsaid."""
    group = _verb_group(clause, needs_auxiliary=False)
    return _join(group.auxiliary, group.main, *_rest(clause))


def infinitive(clause: Clause) -> str:
    """The clause after `to`, its subject unsaid; also a command."""
    return _join(clause.verb.english_word, *_rest(clause))


def _join(*words: str) -> str:
    return " ".join(filter(None, words))


class _VerbGroup(NamedTuple):
    """The verb: an auxiliary or "", and the rest."""

    auxiliary: str
    main: str


def _clause(clause: Clause, inverted: bool) -> str:
    group = _verb_group(clause, needs_auxiliary=inverted or clause.negated)
    subject = "there" if clause.verb is THERE_IS else phrase(clause.subject)
    negation = "not" if clause.negated else ""
    auxiliary = group.auxiliary
    if auxiliary == "can" and negation and not inverted:
        auxiliary, negation = "cannot", ""
    opening = (auxiliary, subject, negation) if inverted else (subject, auxiliary, negation)
    adverb = clause.adverb.english if clause.adverb and clause.adverb is not YET else ""
    when_first = adverbial(clause.time) if clause.time and clause.time_first else ""
    return _join(_fronted(clause), when_first, *opening, adverb, group.main, *_rest(clause))


def _fronted(clause: Clause) -> str:
    if clause.asked:
        return clause.asked.english
    if clause.place and stands_for_head(clause.place):
        return adverbial(clause.place)
    for meaning in clause.objects:
        if is_fronted(meaning):
            return phrase(meaning, is_object=isinstance(meaning, Gap))
    return ""


def _rest(clause: Clause) -> list[str]:
    """Everything after the inflected verb."""
    parts = [*_objects(clause), clause.verb.tail[0]]
    if clause.complement:
        parts.append(_complement(clause.complement))
    spots = (clause.manner, clause.goal, clause.place, clause.company)
    parts += [adverbial(spot) for spot in spots if spot and not stands_for_head(spot)]
    if clause.time and not clause.time_first:
        parts.append(adverbial(clause.time))
    if clause.adverb is YET:
        parts.append("yet")
    return parts


def _objects(clause: Clause) -> list[str]:
    verb = clause.verb
    if verb.receiver:
        return _receiver_and_gift(clause)
    kept = [meaning for meaning in clause.objects if not is_fronted(meaning)]
    texts = [phrase(meaning, is_object=True) for meaning in kept]
    before = verb.english_preposition
    if kept and isinstance(kept[0], Pronoun):
        return [before, *texts, verb.english_particle]
    return [before or verb.english_particle, *texts]


def _receiver_and_gift(clause: Clause) -> list[str]:
    receiver, gift = clause.objects
    to_whom = phrase(receiver, is_object=True)
    if is_fronted(receiver):
        return [phrase(gift), "to"]
    if is_fronted(gift):
        return [f"to {to_whom}" if clause.verb.to else to_whom]
    return [phrase(gift), "to", to_whom] if clause.verb.to else [to_whom, phrase(gift)]


# --- The verb ---


def _verb_group(clause: Clause, needs_auxiliary: bool) -> _VerbGroup:
    verb, subject = clause.verb, _agreeing(clause)
    forms = verb_forms("be" if verb is THERE_IS else verb.english_word)
    if clause.modal:
        return _modal_group(clause, subject, forms.base, needs_auxiliary)
    match clause.tense:
        case "future":
            return _VerbGroup("will", forms.base)
        case "perfect":
            return _VerbGroup(_finite("have", subject, past=False), forms.participle)
        case "progressive":
            return _VerbGroup(_be(subject, past=False), forms.progressive)
        case "present" | "past":
            return _simple(forms.base, subject, clause.tense == "past", needs_auxiliary)


def _agreeing(clause: Clause) -> Phrase:
    return clause.objects[0] if clause.verb is THERE_IS else clause.subject


def _simple(base: str, subject: Phrase, past: bool, needs_auxiliary: bool, then: str = "") -> _VerbGroup:
    if base == "be":
        return _VerbGroup(_be(subject, past), then)
    if needs_auxiliary:
        return _VerbGroup("did" if past else _finite("do", subject, past=False), _join(base, then))
    return _VerbGroup("", _join(_finite(base, subject, past), then))


def _finite(base: str, subject: Phrase, past: bool) -> str:
    forms = verb_forms(base)
    if past:
        return forms.past
    if subject.plural or subject.person != 3:
        return base
    return "does" if base == "do" else forms.third


def _be(subject: Phrase, past: bool) -> str:
    if subject.plural or subject.person == 2:
        return "were" if past else "are"
    if past:
        return "was"
    return "am" if subject.person == 1 else "is"


def _modal_group(clause: Clause, subject: Phrase, base: str, needs_auxiliary: bool) -> _VerbGroup:
    past = clause.tense == "past"
    auxiliary = _modal_auxiliary(clause.modal, past, clause.negated)
    if auxiliary:
        return _VerbGroup(auxiliary, f"like to {base}" if clause.modal == "would like to" else base)
    if clause.modal == "may":
        return _VerbGroup(_be(subject, past), f"allowed to {base}")
    lexical = {"must": "have", "want to": "want", "like to": "like"}[clause.modal]
    return _simple(lexical, subject, past, needs_auxiliary, f"to {base}")


def _modal_auxiliary(modal: Modal, past: bool, negated: bool) -> str:
    """The auxiliary for a modal, or "" where English says it with a full verb, as in `had to`."""
    if modal in ("should", "would like to"):
        return modal.split()[0]
    if modal == "can":
        return "could" if past else "can"
    if past or (modal == "must" and negated):
        return ""
    return {"may": "must" if negated else "may", "must": "must"}.get(modal, "")


def hides_its_tense(verb: Verb, subject: Phrase) -> bool:
    """Whether present and past look the same: they read, they put."""
    base = verb.english_word
    return verb_forms(base).past == base and _finite(base, subject, past=False) == base
