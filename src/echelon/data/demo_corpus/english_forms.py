"""English morphology: plurals, verb forms, a and an, pronouns."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

_PLURALS = {
    "man": "men", "woman": "women", "child": "children", "gentleman": "gentlemen", "policeman": "policemen",
    "policewoman": "policewomen", "salesman": "salesmen", "saleswoman": "saleswomen", "mouse": "mice",
    "wolf": "wolves", "knife": "knives", "shelf": "shelves", "scarf": "scarves", "potato": "potatoes",
    "tomato": "tomatoes", "monkey": "monkeys", "key": "keys", "journey": "journeys",
    "day": "days",
}  # fmt: skip

_OBJECT_PRONOUNS = {
    "I": "me", "you": "you", "he": "him", "she": "her", "it": "it", "we": "us", "they": "them",
}  # fmt: skip

# Written with a vowel but not spoken with one, or the other way round.
_A_BEFORE = ("university", "useful", "unif", "european")
_AN_BEFORE = ("hour", "honest")

# Past and participle.
_IRREGULAR = {
    "be": "was been", "become": "became become", "begin": "began begun", "bring": "brought brought",
    "build": "built built", "buy": "bought bought", "catch": "caught caught", "come": "came come",
    "cost": "cost cost", "cut": "cut cut", "draw": "drew drawn", "drink": "drank drunk",
    "drive": "drove driven", "eat": "ate eaten", "fall": "fell fallen",
    "feed": "fed fed", "find": "found found",
    "fly": "flew flown", "forget": "forgot forgotten", "get": "got gotten", "give": "gave given",
    "go": "went gone", "grow": "grew grown", "have": "had had", "hear": "heard heard", "know": "knew known",
    "lend": "lent lent", "lie": "lay lain", "lose": "lost lost", "meet": "met met", "pay": "paid paid",
    "put": "put put", "read": "read read", "ring": "rang rung", "run": "ran run", "say": "said said",
    "see": "saw seen", "sell": "sold sold", "send": "sent sent", "show": "showed shown", "sing": "sang sung",
    "sit": "sat sat", "sleep": "slept slept", "speak": "spoke spoken", "stand": "stood stood",
    "swim": "swam swum", "take": "took taken", "tell": "told told", "think": "thought thought",
    "throw": "threw thrown", "understand": "understood understood", "wake": "woke woken", "wear": "wore worn",
    "write": "wrote written",
}  # fmt: skip
_DOUBLED_AT_THE_END = ("begin", "forget")
_VOWELS = "aeiou"


class VerbForms(NamedTuple):
    """The forms of an English verb."""

    base: str
    third: str
    past: str
    participle: str
    progressive: str


@cache
def plural(noun: str) -> str:
    """The plural of a noun; of a compound, that of its last word."""
    head, space, last = noun.rpartition(" ")
    if last in _PLURALS:
        return head + space + _PLURALS[last]
    return head + space + _with_s(last)


def _with_s(word: str) -> str:
    if word.endswith("y") and word[-2] not in _VOWELS:
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(("s", "x", "ch", "sh", "z")) else "s")


def article(following: str) -> str:
    """`a` or `an`, by the sound that follows."""
    word = following.lower()
    if word.startswith(_AN_BEFORE):
        return "an"
    return "an" if word[0] in _VOWELS and not word.startswith(_A_BEFORE) else "a"


def object_pronoun(subject: str) -> str:
    """`him` for `he`."""
    return _OBJECT_PRONOUNS[subject]


@cache
def verb_forms(base: str) -> VerbForms:
    """All forms of a verb but those of `be` that agree with more than a third person."""
    stem = base + base[-1] if _doubles(base) else base
    if base in _IRREGULAR:
        past, participle = _IRREGULAR[base].split()
    else:
        past = participle = _regular_past(base, stem)
    third = {"have": "has", "go": "goes", "be": "is"}.get(base) or _with_s(base)
    return VerbForms(base, third, past, participle, _progressive(base, stem))


def _doubles(base: str) -> bool:
    if base in _DOUBLED_AT_THE_END:
        return True
    one_vowel = sum(letter in _VOWELS for letter in base) == 1
    return one_vowel and len(base) > 2 and base[-1] not in _VOWELS + "wxy" and base[-2] in _VOWELS


def _regular_past(base: str, stem: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in _VOWELS:
        return base[:-1] + "ied"
    return stem + "ed"


def _progressive(base: str, stem: str) -> str:
    if base.endswith("ie"):
        return base[:-2] + "ying"
    if base.endswith("e") and base not in ("be", "see"):
        return base[:-1] + "ing"
    return stem + "ing"
