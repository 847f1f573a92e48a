"""Text that another program has already split into subwords, joined back into plain text.

Encoding that text with the same model gives the same pieces again; so cleaning, counting and scoring need not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

from echelon.data.cleaning import SPACE_MARK
from echelon.data.corpora import ChangedText, ParallelText
from echelon.data.tokeniser import Tokeniser
from echelon.errors import DataError

CHECKED_PAIRS = 1000
LARGEST_SHARE_OF_OTHERS = 0.05
LARGEST_SHARE_OF_MARKS = 0.1
_MARK = SPACE_MARK.encode()
_SUBWORD_MARK = re.compile(rb"\S@@ ")
"""What subword-nmt puts between the pieces of a word."""


class SubwordText(ChangedText):
    """A parallel text whose lines are subwords separated by spaces, read as plain text."""

    def __init__(self, text: ParallelText) -> None:
        super().__init__(text, "pieces", joined)


def joined(line: bytes) -> bytes:
    """The text that subwords were made from."""
    return line.replace(b" ", b"").replace(_MARK, b" ").strip(b" ")


def check_subwords(text: SubwordText, tokeniser: Tokeniser) -> None:
    """DataError if the model splits the text differently from the file, whose subwords are then another model's."""
    others, example = 0, ""
    lines = [
        line.decode("utf-8", "replace")
        for pair in islice(text.unchanged.pairs(), CHECKED_PAIRS)
        for line in pair
    ]
    ours = tokeniser.encode([joined(line.encode()).decode() for line in lines])
    for line, ids in zip(lines, ours, strict=True):
        if tokeniser.ids(line.split()) != ids:
            others += 1
            example = example or line
    if others > LARGEST_SHARE_OF_OTHERS * len(lines):
        name = " | ".join(dict.fromkeys(text.names))
        raise DataError(
            f"{name}: {others} of the first {len(lines)} lines are cut into other pieces than data.tokeniser "
            f"makes, such as {example[:60]!r}; name the model that made them, or leave out pieces = true for plain text"
        )


def check_plain(texts: Iterable[ParallelText]) -> None:
    """DataError if the text was split by subword-nmt: its markers would be learnt and scored as text."""
    for text in texts:
        if not isinstance(text, SubwordText):
            _check_one_plain(text)


def _check_one_plain(text: ParallelText) -> None:
    lines = [line for pair in islice(text.pairs(), CHECKED_PAIRS) for line in pair]
    cut = [line for line in lines if _SUBWORD_MARK.search(line)]
    if len(cut) > LARGEST_SHARE_OF_MARKS * len(lines):
        name = " | ".join(dict.fromkeys(text.names))
        raise DataError(
            f"{name}: {len(cut)} of the first {len(lines)} lines are cut into pieces by subword-nmt, such as "
            f"{cut[0][:60].decode('utf-8', 'replace')!r}; make plain text of them with sed 's/@@ //g'"
        )
