"""A sentence in both languages, and how it is written: capital letter, punctuation."""

from __future__ import annotations

from typing import NamedTuple

from echelon.data.demo_corpus import english, german
from echelon.data.demo_corpus.meaning import Clause


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    """English."""
    target: str
    """German."""


def written(source: str, target: str, end: str) -> Pair:
    """Both sentences with a capital and the closing mark, which takes the place of a comma."""
    return Pair(source[0].upper() + source[1:] + end, target[0].upper() + target[1:].rstrip(",") + end)


def stated(clause: Clause) -> Pair:
    """The clause as a statement."""
    return written(english.statement(clause), german.statement(clause), ".")


def asked(clause: Clause) -> Pair:
    """The clause as a question."""
    return written(english.question(clause), german.question(clause), "?")
