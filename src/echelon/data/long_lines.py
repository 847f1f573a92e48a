"""Splits lines longer than anything the model has seen: at sentences, else at clauses, else at words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

CountTokens = Callable[[Sequence[str]], list[int]]
"""How many tokens each of some texts has."""

# A sentence ends with its mark, closing quotes and brackets included, if something like a beginning follows.
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+(?=[\"'«„“‘(\[¿¡]*[^\W\d_a-zß-öø-ÿ])|(?<=[。！？])")
_CLAUSE_END = re.compile(r"(?<=[;:,–—])\s+")


def parts_of(line: str, longest: int, count: CountTokens, *, at_sentences: bool = False) -> list[str]:
    """A line in parts of fewer than `longest` tokens, which leaves room for EOS; an empty line has none."""
    if not line:
        return []
    if not at_sentences and len(line) < longest - 1:
        return [line]  # it has no more tokens than characters, and the mark of its first word
    return split_line(line, longest - 1, count, always=at_sentences)


def join_parts(texts: Sequence[str]) -> str:
    """Join the translations of a line's parts."""
    return " ".join(text for text in texts if text)


def split_line(line: str, limit: int, count: CountTokens, *, always: bool = False) -> list[str]:
    """The line in parts of at most `limit` tokens; whole if it is short enough, or `always` at sentences.

    Nothing is left out.
    """
    if not always and count([line])[0] <= limit:
        return [line]
    parts: list[str] = []
    sentences = _split_after(_SENTENCE_END, line)
    for sentence, tokens in zip(sentences, count(sentences), strict=True):
        parts += [sentence] if tokens <= limit else _split_sentence(sentence, limit, count)
    return parts


def _split_sentence(sentence: str, limit: int, count: CountTokens) -> list[str]:
    units: list[str] = []
    clauses = _split_after(_CLAUSE_END, sentence)
    for clause, tokens in zip(clauses, count(clauses), strict=True):
        units += [clause] if tokens <= limit else _cut_words(clause.split(" "), limit, count)
    return _pack(units, limit, count)


def _cut_words(words: list[str], limit: int, count: CountTokens) -> list[str]:
    """Words; any that exceed a whole part are cut into pieces of at least one character."""
    cut: list[str] = []
    room = max(1, limit - 1)  # one for the space mark
    for word, tokens in zip(words, count(words), strict=True):
        is_too_long = tokens > limit
        cut += [word[i : i + room] for i in range(0, len(word), room)] if is_too_long else [word]
    return cut


def _pack(units: list[str], limit: int, count: CountTokens) -> list[str]:
    """Neighbours together as long as they fit."""
    packed: list[list[str]] = []
    room = 0
    for unit, tokens in zip(units, count(units), strict=True):
        if tokens > room:
            packed.append([])
            room = limit
        packed[-1].append(unit)
        room -= tokens
    return [" ".join(part) for part in packed]


def _split_after(end: re.Pattern[str], text: str) -> list[str]:
    """The text, cut after every match; closing quotes stay with what they close."""
    starts = [0, *(match.end() for match in end.finditer(text)), len(text)]
    parts = (text[start:stop].strip() for start, stop in pairwise(starts))
    return [part for part in parts if part]
