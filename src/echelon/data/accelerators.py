"""User-interface labels such as "_Out" or "&File", without their keyboard-shortcut markers."""

from __future__ import annotations

import re
from functools import cache, partial

from echelon.data.corpora import ChangedText, ParallelText


def without_accelerator(label: bytes, marker: str) -> bytes:
    """The label as it is displayed. A doubled marker is the character itself; several single ones are no shortcut."""
    appended, marks = _patterns(marker)
    label = appended.sub(b"", label)
    if sum(found.group() == marker.encode() for found in marks.finditer(label)) > 1:
        return label
    return marks.sub(lambda found: found.group()[1:], label)


@cache
def _patterns(marker: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """Matches a shortcut in brackets at the end, as in non-Latin labels, and single and doubled markers."""
    mark = re.escape(marker.encode())
    no_entity = rb"(?!#?\w+;)" if marker == "&" else b""
    appended = re.compile(rb"\s*\(" + mark + rb"[0-9A-Za-z]\)")
    return appended, re.compile(mark * 2 + b"|" + mark + rb"(?=[0-9A-Za-z\x80-\xff])" + no_entity)


class PlainLabels(ChangedText):
    """A parallel text of labels, read without their markers."""

    def __init__(self, text: ParallelText, marker: str) -> None:
        super().__init__(text, f"without-{marker}", partial(without_accelerator, marker=marker))
