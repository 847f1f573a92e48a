"""The cleaned training text: a temporary file, read in blocks by several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np

from echelon.data.cleaning import Dropped, DropReason, clean_pairs
from echelon.data.corpora import Chunk, ParallelText, chunks
from echelon.data.duplicates import pair_digests
from echelon.data.pool import OrderedMap
from echelon.data.tokeniser import with_long_words_cut
from echelon.recipe.schema import Clean


@dataclass(frozen=True)
class TextBlock:
    """A stretch of a cleaned text file, whose lines are `source TAB target`."""

    path: Path
    offset_bytes: int
    size_bytes: int
    first_pair: int
    """Index of its first pair among the cleaned pairs of all corpora."""
    pairs: int
    kept: Path | None = None
    """File with a byte for each cleaned pair of all corpora: 0 if it repeats an earlier one."""

    def read_bytes(self) -> bytes:
        """The lines, without duplicates."""
        with self.path.open("rb") as file:
            file.seek(self.offset_bytes)
            text = file.read(self.size_bytes)
        if self.kept is None:
            return text
        is_kept = np.fromfile(self.kept, np.bool_, self.pairs, offset=self.first_pair)
        if is_kept.all():
            return text
        lines = zip(text.split(b"\n")[:-1], is_kept.tolist(), strict=True)
        return b"".join(line + b"\n" for line, keep in lines if keep)

    def read(self) -> tuple[list[str], list[str]]:
        """Source and target lines, without duplicates."""
        pairs = [line.split("\t") for line in self.read_bytes().decode("utf-8").split("\n")[:-1]]
        return [source for source, _ in pairs], [target for _, target in pairs]


@dataclass(frozen=True)
class CleanCorpus:
    """A training corpus after cleaning."""

    label: str
    lines: int
    """Pairs that were read."""
    dropped: Dropped
    blocks: list[TextBlock]

    @property
    def pairs(self) -> int:
        """Pairs left before duplicates are removed."""
        return sum(block.pairs for block in self.blocks)


@dataclass(frozen=True)
class CleanChunk:
    """A worker's result for a chunk."""

    lines: int
    text: bytes
    digests: bytes
    pairs: int
    dropped: Counter[DropReason]


def clean_chunk(chunk: Chunk, rules: Clean) -> CleanChunk:
    """Decode, normalise and filter a chunk."""
    source, target = chunk.decode()
    clean = clean_pairs(zip(source, target, strict=True), rules)
    lines = [f"{s}\t{t}\n".encode() for s, t in zip(clean.source, clean.target, strict=True)]
    digests = pair_digests(lines) if rules.drop_duplicates else b""
    return CleanChunk(len(source), b"".join(lines), digests, len(lines), Counter(clean.dropped))


class CleanText:
    """Writes the cleaned text of one corpus after the other; `digests` collects those of all."""

    def __init__(self, folder: Path, rules: Clean) -> None:
        self._folder = folder
        self._rules = rules
        self._pairs = 0
        self._corpora = 0
        self.digests = folder / "digests.temporary"
        self.digests.touch()

    def add(self, text: ParallelText, in_order: OrderedMap, on_chunk: Callable[[], None]) -> CleanCorpus:
        """Clean a corpus, calling `on_chunk` after each chunk."""
        path = self._folder / f"clean-{self._corpora}.temporary"
        self._corpora += 1
        blocks: list[TextBlock] = []
        lines, dropped = 0, Dropped()
        with path.open("wb") as file, self.digests.open("ab") as digests:
            for chunk in in_order(partial(clean_chunk, rules=self._rules), chunks(text)):
                blocks += self._write(chunk, path, file)
                digests.write(chunk.digests)
                lines += chunk.lines
                dropped = dropped.plus(chunk.dropped)
                on_chunk()
        return CleanCorpus(text.label, lines, dropped, blocks)

    def _write(self, chunk: CleanChunk, path: Path, file: BinaryIO) -> list[TextBlock]:
        if not chunk.pairs:
            return []
        block = TextBlock(path, file.tell(), len(chunk.text), self._pairs, chunk.pairs)
        file.write(chunk.text)
        self._pairs += chunk.pairs
        return [block]


def count_blocks(blocks: Sequence[TextBlock]) -> Counter[str]:
    """Words of both sides of some blocks: split as bytes, which is faster, and only distinct ones decoded."""
    words: Counter[bytes] = Counter()
    for block in blocks:
        words.update(block.read_bytes().split())
    return with_long_words_cut(Counter({word.decode(): count for word, count in words.items()}))
