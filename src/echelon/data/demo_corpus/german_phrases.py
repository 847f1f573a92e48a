"""German phrases: nouns with their determiners and adjectives, prepositions, complements; no clauses."""

from __future__ import annotations

from echelon.data.demo_corpus.german_forms import (
    attributive,
    comparative,
    contract,
    determiner,
    gender_of,
    noun_form,
    pronoun,
    relative_pronoun,
    superlative,
)
from echelon.data.demo_corpus.meaning import (
    Adverbial,
    Asked,
    Both,
    Complement,
    Gap,
    Measure,
    Name,
    NounPhrase,
    Phrase,
    Prepositional,
    Profession,
    Pronoun,
    Quality,
)
from echelon.data.demo_corpus.numbers import german_cardinal
from echelon.data.demo_corpus.verbs import GrammaticalCase

_DEGREES = {"": "", "very": "sehr ", "too": "zu ", "quite": "ziemlich "}
_ASKED: dict[tuple[str, GrammaticalCase], str] = {
    ("who", "nominative"): "wer",
    ("who", "accusative"): "wen",
    ("who", "dative"): "wem",
    ("what", "nominative"): "was",
    ("what", "accusative"): "was",
}


def phrase(meaning: Phrase, case: GrammaticalCase, negated: bool = False) -> str:
    """A phrase in a case, without its relative clause; `negated` turns ein into kein."""
    match meaning:
        case NounPhrase():
            return _noun_phrase(meaning, case, negated)
        case Pronoun():
            return pronoun(meaning.german, meaning.plural, case)
        case Name():
            return meaning.name
        case Both():
            return f"{phrase(meaning.first, case)} und {phrase(meaning.second, case)}"
        case Asked():
            return _ASKED[meaning.word, case]
        case Gap():
            return relative_pronoun(gender_of(meaning.noun.gender, meaning.plural), case)


def _noun_phrase(meaning: NounPhrase, case: GrammaticalCase, negated: bool) -> str:
    gender = gender_of(meaning.noun.gender, meaning.plural)
    owner = meaning.owner
    opening, after = "", ""
    if isinstance(owner, Name):
        opening = owner.name + "s"
    elif isinstance(owner, Gap):
        opening = phrase(owner, "genitive")
    else:
        after = "no" if negated and is_indefinite(meaning) else meaning.determiner
        opening = determiner(after, gender, case)
    words = [opening] if opening else []
    if meaning.number:
        words.append(german_cardinal(meaning.number))
    for adjective in meaning.adjectives:
        if meaning.superlative:
            words.append(superlative(adjective, gender, case))
        else:
            words.append(attributive(adjective, after, gender, case))
    words.append(noun_form(meaning.noun, case, meaning.plural))
    if isinstance(owner, NounPhrase):
        words.append(_noun_phrase(owner, "genitive", negated=False))
    if meaning.spot:
        words.append(adverbial(meaning.spot))
    return " ".join(words)


def is_indefinite(meaning: Phrase) -> bool:
    """Whether a negation of the clause turns this phrase's determiner into kein."""
    return (
        isinstance(meaning, NounPhrase)
        and meaning.determiner in ("", "a")
        and not meaning.number
        and meaning.owner is None
    )


def after_preposition(preposition: str, meaning: Phrase, case: GrammaticalCase) -> str:
    """Preposition and phrase: `im Haus`, `auf ihn`, and `worauf` for a thing that is asked for."""
    if isinstance(meaning, Asked) and meaning.word == "what":
        return f"wo{'r' if preposition[0] in 'aäuü' else ''}{preposition}"
    text = phrase(meaning, case)
    fuses = isinstance(meaning, NounPhrase) and meaning.determiner == "the" and meaning.relative is None
    return contract(preposition, text) if fuses else f"{preposition} {text}"


def adverbial(meaning: Adverbial | Prepositional) -> str:
    """An adverbial of either sort."""
    if isinstance(meaning, Adverbial):
        return meaning.german
    return after_preposition(meaning.german, meaning.phrase, meaning.case)


def complement(meaning: Complement, negated: bool = False) -> str:
    """What is said of the subject after `sein`."""
    match meaning:
        case Quality():
            return _quality(meaning)
        case Profession():
            if meaning.female:
                return f"keine {meaning.noun.feminine}" if negated else meaning.noun.feminine
            return f"kein {meaning.noun.german}" if negated else meaning.noun.german
        case Measure():
            return f"{german_cardinal(meaning.number)} {meaning.german}"
        case NounPhrase():
            return phrase(meaning, "nominative", negated)


def _quality(meaning: Quality) -> str:
    if meaning.comparison is None:
        return _DEGREES[meaning.degree] + meaning.adjective.german
    assert meaning.than is not None
    other = phrase(meaning.than, "nominative")
    if meaning.comparison == "than":
        return f"{comparative(meaning.adjective)} als {other}"
    return f"so {meaning.adjective.german} wie {other}"
