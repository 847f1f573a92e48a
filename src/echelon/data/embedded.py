"""The corpus that Echelon generates itself, seen as parallel text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

EMBEDDED_SEED = 1
Split = Literal["train", "valid", "test"]


@lru_cache(maxsize=3)
def _encoded(split: Split) -> tuple[tuple[bytes, bytes], ...]:
    from echelon.data.grammar import generate

    pairs = getattr(generate(seed=EMBEDDED_SEED), split)
    return tuple((pair.source.encode(), pair.target.encode()) for pair in pairs)


class EmbeddedText:
    """One split of the embedded corpus."""

    def __init__(self, split: Split) -> None:
        self.label = f"embedded {split}"
        self._pairs = _encoded(split)
        self.size_bytes = sum(len(source) + len(target) for source, target in self._pairs)
        self.bytes_read = 0

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Every pair, in the order it was generated."""
        self.bytes_read = 0
        for source, target in self._pairs:
            self.bytes_read += len(source) + len(target)
            yield source, target
