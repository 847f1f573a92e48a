"""Encoded pairs on disk: for each side the tokens of all sentences in a row, their lengths and their offsets.

NAME.SIDE.tokens    uint16, every sentence ending in EOS
NAME.SIDE.lengths   uint32, one per sentence, EOS included
NAME.SIDE.offsets   int64, one per sentence and one for the end, in tokens
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from echelon.data.cleaning import NormalForm, count_words, normalise
from echelon.data.corpora import Chunk
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.data.training_text import TextBlock

LENGTH_TYPE = np.dtype("<u4")
OFFSET_TYPE = np.dtype("<i8")
SIDES = ("source", "target")


@dataclass(frozen=True)
class FileEntry:
    """A file of the prepared folder."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class SideCount:
    """The size of one side of a corpus."""

    words: int = 0
    bytes: int = 0
    """UTF-8 bytes of the normalised lines, without line ends."""
    tokens: int = 0
    """Pieces and one EOS a sentence."""

    def __add__(self, other: SideCount) -> SideCount:
        return SideCount(self.words + other.words, self.bytes + other.bytes, self.tokens + other.tokens)


@dataclass(frozen=True)
class EncodedSide:
    """Some sentences of one language as tokens."""

    tokens: NDArray[np.uint16]
    lengths: NDArray[np.uint32]
    count: SideCount


@dataclass(frozen=True)
class EncodedPairs:
    """A worker's result for a block or chunk."""

    source: EncodedSide
    target: EncodedSide
    source_text: bytes = b""
    """Validation and test sets only: the normalised lines that the model is given."""
    reference_text: bytes = b""
    """Validation and test sets only: the lines to score against, as they are in the file."""

    @property
    def pairs(self) -> int:
        return len(self.source.lengths)


@lru_cache(maxsize=1)
def _tokeniser(model: Path) -> Tokeniser:
    """Load it once per process, so that its cache of words lasts."""
    return Tokeniser.load(model)


def encode_side(lines: Sequence[str], tokeniser: Tokeniser) -> EncodedSide:
    """Encode normalised lines."""
    tokens = tokeniser.encode_in_a_row(lines)
    lengths = np.diff(np.flatnonzero(tokens == EOS), prepend=-1).astype(LENGTH_TYPE)
    words = sum(map(count_words, lines))
    return EncodedSide(
        tokens, lengths, SideCount(words, sum(len(line.encode()) for line in lines), len(tokens))
    )


def encode_block(block: TextBlock, model: Path) -> EncodedPairs:
    """Encode cleaned training text."""
    source, target = block.read()
    tokeniser = _tokeniser(model)
    return EncodedPairs(encode_side(source, tokeniser), encode_side(target, tokeniser.for_target))


def encode_held_out(chunk: Chunk, form: NormalForm, model: Path) -> EncodedPairs:
    """Encode a chunk of a validation or test set: normalised, never filtered."""
    source, target = ([normalise(line, form) for line in lines] for lines in chunk.decode())
    tokeniser = _tokeniser(model)
    return EncodedPairs(
        encode_side(source, tokeniser),
        encode_side(target, tokeniser.for_target),
        "".join(f"{line}\n" for line in source).encode(),
        chunk.target + b"\n",
    )


class HashingFile:
    """A new file whose SHA-256 is known when it is written."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._file = path.open("xb")
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sha256.update(data)
        self._bytes += memoryview(data).nbytes

    def close(self) -> None:
        self._file.close()

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self._name, self._bytes, self._sha256.hexdigest())


class PairWriter:
    """Writes the files of one corpus, block after block; a context manager that closes them."""

    def __init__(self, folder: Path, name: str, *, with_text: bool) -> None:
        self.name = name
        self.pairs = 0
        self.count = {side: SideCount() for side in SIDES}
        self._folder = folder
        self._kinds = [f"{side}.{kind}" for side in SIDES for kind in ("tokens", "lengths", "offsets")]
        self._kinds += ["source.text", "reference.text"] if with_text else []
        self._files: dict[str, HashingFile] = {}
        self._closing = ExitStack()

    def __enter__(self) -> PairWriter:
        with self._closing as closing:
            for kind in self._kinds:
                self._files[kind] = closing.enter_context(
                    contextlib.closing(HashingFile(self._folder / f"{self.name}.{kind}"))
                )
            for side in SIDES:
                self._files[f"{side}.offsets"].write(np.zeros(1, OFFSET_TYPE).data)
            self._closing = closing.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    def entries(self) -> list[FileEntry]:
        """What was written."""
        return [file.entry for file in self._files.values()]

    def add(self, encoded: EncodedPairs) -> None:
        """Append pairs."""
        self._add_side("source", encoded.source)
        self._add_side("target", encoded.target)
        if "source.text" in self._files:
            self._files["source.text"].write(encoded.source_text)
            self._files["reference.text"].write(encoded.reference_text)
        self.pairs += encoded.pairs

    def _add_side(self, side: str, encoded: EncodedSide) -> None:
        offsets = self.count[side].tokens + np.cumsum(encoded.lengths, dtype=OFFSET_TYPE)
        self._files[f"{side}.tokens"].write(encoded.tokens.data)
        self._files[f"{side}.lengths"].write(encoded.lengths.data)
        self._files[f"{side}.offsets"].write(offsets.data)
        self.count[side] += encoded.count
