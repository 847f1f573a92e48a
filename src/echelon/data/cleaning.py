"""How a line is normalised, and which training pairs are dropped."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from echelon.recipe.schema import Clean

NormalForm = Literal["NFC", "NFKC"]
DropReason = Literal["nul_bytes", "empty", "too_short", "too_long", "ratio", "identical", "duplicate"]

CLEANING_VERSION = 2
"""Changes whenever the same text and rules leave other pairs: since 2, those with NUL bytes and endless words go."""
LONGEST_WORD = 1000
"""Characters; anything longer is not a word, but data, or a text that has lost its spaces."""

SPACE_MARK = "\u2581"
"""How SentencePiece writes the space in front of a word; the character itself could not be told from one."""
_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
# Soft hyphens, zero-width spaces, marks of writing direction, invisible operators, tags. The zero-width
# joiner and non-joiner (U+200C, U+200D) stay: Persian, the Indic scripts and emoji are spelled with them.
_INVISIBLE = [0xAD, 0x61C, 0x180E, 0x200B, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2070)]
_INVISIBLE += [0xFEFF, *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080)]
REPLACEMENTS: dict[int, str | None] = {
    **dict.fromkeys(_CONTROLS, " "),
    **dict.fromkeys(_INVISIBLE),
    ord(SPACE_MARK): "_",
}
# Han, Hiragana, Katakana: a character is about a word. Thai, Lao, Myanmar, Khmer: about four letters and signs are.
_CHARACTERS = "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
_CHARACTERS += "\U00020000-\U0003ffff"
_LETTERS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_PUNCTUATION = "\u3000-\u303f\uff01-\uff0f\uff1a-\uff1f"
UNSPACED = re.compile(f"[{_CHARACTERS}{_LETTERS}]")
"""A character of a script that puts no spaces between words."""
_WORDS = re.compile(rf"[{_CHARACTERS}]|[{_LETTERS}]{{1,4}}|[^\s{_CHARACTERS}{_LETTERS}{_PUNCTUATION}]+")


def normalise(line: str, form: NormalForm) -> str:
    """The line in a Unicode normal form, without control and invisible characters, words one space apart."""
    if (
        not line.isprintable() or SPACE_MARK in line
    ):  # everything to replace is not printable, which is quick to check
        line = line.translate(REPLACEMENTS)
    return " ".join(unicodedata.normalize(form, line).split())


def count_words(line: str) -> int:
    """The number of words in a normalised line; an estimate for scripts without spaces."""
    if not line.isascii() and UNSPACED.search(line):  # checked first, so that other scripts take no longer
        return sum(1 for _ in _WORDS.finditer(line))
    return line.count(" ") + 1 if line else 0


def has_endless_word(line: str) -> bool:
    """Whether a word is longer than any real word; not measured in scripts without spaces."""
    if len(line) <= LONGEST_WORD:
        return False
    words = (word for word in line.split(" ") if len(word) > LONGEST_WORD)
    return any(word.isascii() or UNSPACED.search(word) is None for word in words)


def reason_to_drop(source: str, target: str, rules: Clean) -> DropReason | None:
    """Why this normalised pair is not trained on; None if it is. Duplicates are found elsewhere."""
    shorter, longer = sorted((count_words(source), count_words(target)))
    if shorter == 0:
        return "empty"
    if shorter < rules.min_words:
        return "too_short"
    if longer > rules.max_words or has_endless_word(source) or has_endless_word(target):
        return "too_long"
    if longer > rules.max_ratio * shorter:
        return "ratio"
    if rules.drop_identical and source == target:
        return "identical"
    return None


@dataclass(frozen=True)
class Dropped:
    """How many training pairs were dropped, by the first reason that applied."""

    nul_bytes: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    ratio: int = 0
    identical: int = 0
    duplicate: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def plus(self, counts: Mapping[DropReason, int]) -> Dropped:
        return replace(self, **{reason: getattr(self, reason) + count for reason, count in counts.items()})

    def __str__(self) -> str:
        counted = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in asdict(self).items() if count]
        return ", ".join(counted) or "none"


@dataclass(frozen=True)
class CleanPairs:
    """The pairs that were kept, and counts of why the others were dropped."""

    source: list[str]
    target: list[str]
    dropped: Mapping[DropReason, int]


def clean_pairs(pairs: Iterable[tuple[str, str]], rules: Clean) -> CleanPairs:
    """Normalise training pairs and drop unsuitable ones."""
    kept = CleanPairs([], [], dropped := Counter[DropReason]())
    for raw_source, raw_target in pairs:
        if "\0" in raw_source or "\0" in raw_target:
            dropped["nul_bytes"] += 1
            continue
        source, target = normalise(raw_source, rules.unicode), normalise(raw_target, rules.unicode)
        if reason := reason_to_drop(source, target, rules):
            dropped[reason] += 1
        else:
            kept.source.append(source)
            kept.target.append(target)
    return kept
