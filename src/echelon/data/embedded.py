"""The corpus that Echelon generates itself, as parallel text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Literal

from echelon.data.demo_corpus import SHA256, EmbeddedCorpus, generate
from echelon.data.streams import FileLocation

EmbeddedSplit = Literal["train", "valid", "test"]


class EmbeddedText:
    """One split of the embedded corpus, generated on first read and identified by its pinned digest."""

    sha256 = SHA256

    def __init__(self, split: EmbeddedSplit) -> None:
        self.label = f"embedded {split}"
        self.bytes_read = 0
        self._split = split

    @property
    def names(self) -> tuple[str, str]:
        return self.label, self.label

    @property
    def units(self) -> tuple[str, str]:
        return "line", "line"

    @property
    def places(self) -> dict[str, FileLocation]:
        return {}

    @cached_property
    def size_bytes(self) -> int:
        return sum(len(source) + len(target) for source, target in self.pairs())

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Every pair, in the order it was generated."""
        self.bytes_read = 0
        for pair in getattr(_corpus(), self._split):
            source, target = pair.source.encode(), pair.target.encode()
            self.bytes_read += len(source) + len(target)
            yield source, target


@cache
def _corpus() -> EmbeddedCorpus:
    return generate()
