"""German morphology: articles, pronouns, nouns, adjectives and verbs in all the forms the sentences need.

Verb forms are listed for four persons: ich, du, er/sie/es, and the plural, whose first and third person are
always the same. The polite `Sie` and the plural `ihr` are never said here.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from echelon.data.demo_corpus.adjectives import Adjective
from echelon.data.demo_corpus.nouns import Gender, Noun
from echelon.data.demo_corpus.verbs import GrammaticalCase, Verb

GenderOrPlural = Literal["m", "f", "n", "p"]
Forms = tuple[str, str, str, str]
"""The forms for ich, du, er, and wir or sie."""

_CASE_ORDER: tuple[GrammaticalCase, ...] = ("nominative", "accusative", "dative", "genitive")

# In the order nominative, accusative, dative, genitive; "-" is no ending.
_ARTICLE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des", "p": "die die den der"}
_DER_ENDINGS = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
_EIN_ENDINGS = {"m": "- en em es", "f": "e e er er", "n": "- - em es", "p": "e e en er"}
_RELATIVE = {
    "m": "der den dem dessen",
    "f": "die die der deren",
    "n": "das das dem dessen",
    "p": "die die denen deren",
}
_WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
_MIXED = {"m": "er en en en", "f": "e e en en", "n": "es es en en", "p": "en en en en"}
_STRONG = {"m": "er en em en", "f": "e e er er", "n": "es es em en", "p": "e e en er"}

_DER_WORDS = {"this": "dies", "every": "jed", "which": "welch", "all": "all", "both": "beid"}
_EIN_WORDS = {
    "a": "ein", "no": "kein", "my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser",
    "their": "ihr",
}  # fmt: skip
_QUANTIFIERS = {"many": "viel", "some": "einig", "several": "mehrer", "how many": "wie viel"}

_PRONOUNS: dict[tuple[str, bool], str] = {
    ("ich", False): "ich mich mir",
    ("du", False): "du dich dir",
    ("er", False): "er ihn ihm",
    ("sie", False): "sie sie ihr",
    ("es", False): "es es ihm",
    ("wir", True): "wir uns uns",
    ("sie", True): "sie sie ihnen",
    ("das", False): "das das dem",
}
_CONTRACTIONS = {
    "in dem": "im", "in das": "ins", "an dem": "am", "an das": "ans", "zu dem": "zum", "zu der": "zur",
    "bei dem": "beim", "von dem": "vom",
}  # fmt: skip


def _pick(table: dict[str, str], gender: str, case: GrammaticalCase) -> str:
    return table[gender].split()[_CASE_ORDER.index(case)].strip("-")


@cache
def determiner(word: str, gender: GenderOrPlural, case: GrammaticalCase) -> str:
    """The German determiner for an English one; "" for none."""
    if word == "the":
        return _pick(_ARTICLE, gender, case)
    if word in _DER_WORDS:
        return _DER_WORDS[word] + _pick(_DER_ENDINGS, gender, case)
    if word in _EIN_WORDS:
        return _EIN_WORDS[word] + _pick(_EIN_ENDINGS, gender, case)
    if word in _QUANTIFIERS:
        return _QUANTIFIERS[word] + _pick(_STRONG, gender, case)
    assert not word, word
    return ""


@cache
def adjective_ending(after: str, gender: GenderOrPlural, case: GrammaticalCase) -> str:
    """The ending of an adjective after the determiner: weak after der, mixed after ein, otherwise strong."""
    if after == "the" or after in _DER_WORDS:
        return _pick(_WEAK, gender, case)
    return _pick(_MIXED if after in _EIN_WORDS else _STRONG, gender, case)


@cache
def attributive(adjective: Adjective, after: str, gender: GenderOrPlural, case: GrammaticalCase) -> str:
    """The adjective before a noun."""
    return (adjective.stem or adjective.german) + adjective_ending(after, gender, case)


def comparative(adjective: Adjective) -> str:
    """`größer`, `teurer`, `dunkler`."""
    return adjective.comparative or (adjective.stem or adjective.german) + "er"


@cache
def superlative(adjective: Adjective, gender: GenderOrPlural, case: GrammaticalCase) -> str:
    """The superlative after a definite article: das `größte` Haus."""
    return (adjective.superlative or adjective.german + "st") + adjective_ending("the", gender, case)


@cache
def noun_form(noun: Noun, case: GrammaticalCase, plural: bool) -> str:
    """The noun in a case and number."""
    if plural:
        ends_in_n = case == "dative" and not noun.plural.endswith(("n", "s"))
        return noun.plural + ("n" if ends_in_n else "")
    if case == "nominative":
        return noun.german
    if noun.weak:
        return noun.german + noun.weak
    if case == "genitive" and noun.gender != "f":
        return noun.german + _genitive_ending(noun)
    return noun.german


def _genitive_ending(noun: Noun) -> str:
    """-es where -s could not be said, and after one native syllable; Bus and Geheimnis double their s."""
    word = noun.german
    if noun.plural == word + "s":
        return "s"
    if word.endswith("s") and noun.plural == word + "se":
        return "ses"
    if word.endswith(("s", "ß", "z", "x", "sch")):
        return "es"
    syllables = len(re.findall("[aeiouäöüy]+", word.lower()))
    return "es" if syllables == 1 and word[-1] not in "aeiou" else "s"


@cache
def pronoun(german: str, plural: bool, case: GrammaticalCase) -> str:
    """A personal pronoun, named by its nominative, in a case."""
    return _PRONOUNS[german, plural].split()[_CASE_ORDER.index(case)]


def reflexive(person: int, plural: bool) -> str:
    """The reflexive pronoun in the accusative."""
    if person == 3:
        return "sich"
    return "uns" if plural else ("mich", "dich")[person - 1]


@cache
def relative_pronoun(gender: GenderOrPlural, case: GrammaticalCase) -> str:
    """der, die, das as a relative pronoun."""
    return _pick(_RELATIVE, gender, case)


def contract(preposition: str, phrase: str) -> str:
    """Preposition and phrase, fused where German does: `in dem Haus` is `im Haus`."""
    article, space, rest = phrase.partition(" ")
    fused = _CONTRACTIONS.get(f"{preposition} {article}") if space else None
    return f"{fused} {rest}" if fused else f"{preposition} {phrase}"


# --- Verbs ---

# Irregular verbs: the stem of du and er ("" if it does not change), and the participle.
_IRREGULAR = {
    "backen": ("bäck", "gebacken"),
    "be-schließen": ("", "beschlossen"),
    "be-sprechen": ("besprich", "besprochen"),
    "bieten": ("", "geboten"),
    "bleiben": ("", "geblieben"),
    "bringen": ("", "gebracht"),
    "denken": ("", "gedacht"),
    "emp-fehlen": ("empfiehl", "empfohlen"),
    "essen": ("iss", "gegessen"),
    "fahren": ("fähr", "gefahren"),
    "fangen": ("fäng", "gefangen"),
    "finden": ("", "gefunden"),
    "fliegen": ("", "geflogen"),
    "fressen": ("friss", "gefressen"),
    "ge-fallen": ("gefäll", "gefallen"),
    "geben": ("gib", "gegeben"),
    "gehen": ("", "gegangen"),
    "gießen": ("", "gegossen"),
    "haben": ("", "gehabt"),
    "helfen": ("hilf", "geholfen"),
    "kennen": ("", "gekannt"),
    "kommen": ("", "gekommen"),
    "laden": ("läd", "geladen"),
    "laufen": ("läuf", "gelaufen"),
    "leihen": ("", "geliehen"),
    "lesen": ("lies", "gelesen"),
    "liegen": ("", "gelegen"),
    "nehmen": ("nimm", "genommen"),
    "rufen": ("", "gerufen"),
    "schlafen": ("schläf", "geschlafen"),
    "schneiden": ("", "geschnitten"),
    "schreiben": ("", "geschrieben"),
    "schwimmen": ("", "geschwommen"),
    "sehen": ("sieh", "gesehen"),
    "singen": ("", "gesungen"),
    "sitzen": ("", "gesessen"),
    "sprechen": ("sprich", "gesprochen"),
    "stehen": ("", "gestanden"),
    "streichen": ("", "gestrichen"),
    "tragen": ("träg", "getragen"),
    "treffen": ("triff", "getroffen"),
    "trinken": ("", "getrunken"),
    "unter-schreiben": ("", "unterschrieben"),
    "ver-gessen": ("vergiss", "vergessen"),
    "ver-lieren": ("", "verloren"),
    "ver-sprechen": ("versprich", "versprochen"),
    "ver-stehen": ("", "verstanden"),
    "wachsen": ("wächs", "gewachsen"),
    "waschen": ("wäsch", "gewaschen"),
    "werden": ("", "geworden"),
    "werfen": ("wirf", "geworfen"),
    "wissen": ("", "gewusst"),
    "ziehen": ("", "gezogen"),
}

_PRESENT: dict[str, Forms] = {
    "sein": ("bin", "bist", "ist", "sind"),
    "haben": ("habe", "hast", "hat", "haben"),
    "werden": ("werde", "wirst", "wird", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen"),
    "können": ("kann", "kannst", "kann", "können"),
    "müssen": ("muss", "musst", "muss", "müssen"),
    "dürfen": ("darf", "darfst", "darf", "dürfen"),
    "sollen": ("sollte", "solltest", "sollte", "sollten"),
    "wollen": ("will", "willst", "will", "wollen"),
    "möchten": ("möchte", "möchtest", "möchte", "möchten"),
}

# Only these have a simple past here; everything else is told in the perfect.
_PRETERITE_STEMS = {
    "sein": "war",
    "haben": "hatte",
    "wissen": "wusste",
    "geben": "gab",
    "können": "konnte",
    "müssen": "musste",
    "dürfen": "durfte",
    "wollen": "wollte",
}


def _stem(infinitive: str) -> str:
    plain = infinitive.replace("-", "")
    return plain[:-1] if plain.endswith(("eln", "ern")) else plain[:-2]


def _needs_e(stem: str) -> bool:
    """Whether -st and -t need an e before them: du arbeitest, er öffnet, es regnet."""
    if stem.endswith(("t", "d")):
        return True
    return stem[-1] in "mn" and (stem[-2] not in "aeiouäöülrhmn" or stem.endswith("chn"))


@cache
def present(infinitive: str) -> Forms:
    """The present tense of a verb without its particle."""
    if infinitive in _PRESENT:
        return _PRESENT[infinitive]
    stem = _stem(infinitive)
    plural = infinitive.replace("-", "")
    first = stem[:-2] + "le" if infinitive.endswith("eln") else stem + "e"
    changed = _IRREGULAR.get(infinitive, ("", ""))[0]
    if changed:
        return first, _second_person(changed), changed if changed.endswith("t") else changed + "t", plural
    linking = "e" if _needs_e(stem) else ""
    return first, _second_person(stem + linking), f"{stem}{linking}t", plural


def _second_person(stem: str) -> str:
    return stem + ("t" if stem.endswith(("s", "ß", "z", "x")) else "st")


def preterite(infinitive: str) -> Forms | None:
    """The simple past of the few verbs that are told in it, else None."""
    stem = _PRETERITE_STEMS.get(infinitive)
    if stem is None:
        return None
    if stem.endswith("e"):
        return stem, stem + "st", stem, stem + "n"
    return stem, stem + "st", stem, stem + "en"


@cache
def participle(infinitive: str) -> str:
    """The past participle of a verb without its particle: `gemacht`, `besucht`, `repariert`."""
    if infinitive in _IRREGULAR:
        return _IRREGULAR[infinitive][1]
    stem = _stem(infinitive)
    ending = "et" if _needs_e(stem) else "t"
    takes_ge = "-" not in infinitive and not infinitive.endswith("ieren")
    return f"{'ge' if takes_ge else ''}{stem}{ending}"


@cache
def imperative(infinitive: str) -> str:
    """The command to one friend: `lies`, `mach`, `arbeite`, `fahr`."""
    changed = _IRREGULAR.get(infinitive, ("", ""))[0]
    stem = _stem(infinitive)
    if changed and not set("äöü") & set(changed):
        return changed
    if infinitive.endswith("eln"):
        return stem[:-2] + "le"
    return stem + ("e" if _needs_e(stem) or infinitive.endswith(("ern", "ieren")) else "")


def full_infinitive(verb: Verb, zu: bool = False) -> str:
    """The infinitive with its particle: `aufmachen`, `aufzumachen`, `zu lesen`."""
    plain = verb.infinitive.replace("-", "")
    if not zu:
        return verb.particle + plain
    return f"{verb.particle}zu{plain}" if verb.particle else f"zu {plain}"


def full_participle(verb: Verb) -> str:
    """The participle with its particle: `aufgemacht`."""
    return verb.particle + participle(verb.infinitive)


def gender_of(gender: Gender, plural: bool) -> GenderOrPlural:
    """The gender that a determiner or adjective agrees with; the plural has only one."""
    return "p" if plural else gender
