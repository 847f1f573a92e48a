"""Prepared data: a folder of mapped files with a manifest, found by what it was made from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from echelon.data.cleaning import Dropped
from echelon.data.fingerprints import sha256_of_file
from echelon.data.shards import LENGTH_TYPE, OFFSET_TYPE, FileEntry, SideCount
from echelon.data.tokeniser import TOKEN_TYPE
from echelon.errors import DataError
from echelon.runfolder import read_file, require_regular

FORMAT_VERSION = 2
MANIFEST = "manifest.json"
TOKENISER = "tokeniser.model"
PREPARED_FOLDER = re.compile(r"/prepared/[0-9a-f]{16,64}\Z")
FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*(\.[a-z]+)+")


@dataclass(frozen=True)
class InputEntry:
    """An input of the data: a file, or the embedded corpus."""

    name: str
    """What it is for, e.g. train-0.source."""
    origin: str
    """The path it was read from."""
    sha256: str


@dataclass(frozen=True)
class CorpusEntry:
    """One corpus, as prepared."""

    name: str
    """train-0, train-1, ..., valid or test: what its files' names start with."""
    label: str
    lines: int
    """Lines of each input file."""
    pairs: int
    """Pairs left after cleaning."""
    source: SideCount
    target: SideCount
    dropped: Dropped


@dataclass(frozen=True)
class Manifest:
    """All metadata of prepared data."""

    format_version: int
    key: str
    source_language: str
    target_language: str
    vocabulary: int
    """Pieces there are, which may be fewer than the recipe asks for."""
    corpora: tuple[CorpusEntry, ...]
    inputs: tuple[InputEntry, ...]
    settings: dict[str, Any]
    """What the key was made from, beside the inputs."""
    files: tuple[FileEntry, ...]

    def to_json(self) -> bytes:
        return TypeAdapter(Manifest).dump_json(self, indent=1) + b"\n"


@dataclass(frozen=True)
class Side:
    """The sentences of one language, tokens of all in a row."""

    tokens: NDArray[np.uint16]
    lengths: NDArray[np.uint32]
    """[pairs], EOS included."""
    offsets: NDArray[np.int64]
    """[pairs + 1], in tokens."""

    def sentence(self, index: int) -> NDArray[np.uint16]:
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class PairStore:
    """Encoded pairs, mapped from disk: opening them costs no memory."""

    sides: tuple[Side, Side] = field(repr=False)
    name: str = ""
    folder: Path | None = None

    def __len__(self) -> int:
        return len(self.sides[0].lengths)

    @property
    def source_lengths(self) -> NDArray[np.uint32]:
        """Tokens of each source sentence, EOS included."""
        return self.sides[0].lengths

    @property
    def target_lengths(self) -> NDArray[np.uint32]:
        """Tokens of each target sentence, EOS included."""
        return self.sides[1].lengths

    def source(self, index: int) -> NDArray[np.uint16]:
        """Tokens of a source sentence, ending in EOS."""
        return self.sides[0].sentence(index)

    def target(self, index: int) -> NDArray[np.uint16]:
        """Tokens of a target sentence, ending in EOS."""
        return self.sides[1].sentence(index)

    def source_lines(self) -> list[str]:
        """Normalised source lines of a validation or test set."""
        return self._lines("source")

    def reference_lines(self) -> list[str]:
        """Target lines of a validation or test set exactly as they are in its file, to score against."""
        return self._lines("reference")

    def _lines(self, kind: str) -> list[str]:
        assert self.folder is not None
        assert not self.name.startswith("train"), "only validation and test sets keep their text"
        text = (self.folder / f"{self.name}.{kind}.text").read_bytes()
        return [line.decode() for line in text.split(b"\n")[:-1]]


@dataclass(frozen=True)
class Prepared:
    """Prepared data, open."""

    folder: Path
    manifest: Manifest
    train: list[PairStore]
    valid: PairStore
    test: PairStore | None

    @property
    def key(self) -> str:
        return self.manifest.key

    @property
    def tokeniser_path(self) -> Path:
        return self.folder / TOKENISER


def open_prepared(folder: Path, *, verify: bool = False) -> Prepared:
    """Open prepared data; DataError naming the file that is missing or damaged.

    Sizes are always checked, contents (SHA-256) with `verify`.
    """
    manifest = read_manifest(folder, Manifest, FORMAT_VERSION)
    for entry in manifest.files:
        check_file(folder, entry, verify=verify)
    stores = {corpus.name: open_store(folder, corpus, manifest.files) for corpus in manifest.corpora}
    train = [store for name, store in stores.items() if name.startswith("train-")]
    if "valid" not in stores or not train:
        raise damaged(folder, MANIFEST, "names no training or validation set")
    return Prepared(folder, manifest, train, stores["valid"], stores.get("test"))


class Versioned(Protocol):
    """A manifest, of text or of images."""

    @property
    def format_version(self) -> int: ...


AnyManifest = TypeVar("AnyManifest", bound=Versioned)


def read_manifest(folder: Path, kind: type[AnyManifest], format_version: int) -> AnyManifest:
    """The manifest of prepared data; DataError if it is damaged, of another kind or another version's."""
    try:
        manifest = TypeAdapter(kind).validate_json(read_file(folder / MANIFEST))
    except OSError as error:
        raise damaged(folder, MANIFEST, error.strerror or "cannot be read") from error
    except ValidationError as error:
        raise damaged(folder, MANIFEST, "is not a manifest of this kind of data") from error
    if manifest.format_version != format_version:
        message = f"has format {manifest.format_version}, this Echelon reads {format_version}"
        raise damaged(folder, MANIFEST, message)
    return manifest


def check_file(folder: Path, entry: FileEntry, *, verify: bool = False) -> None:
    """DataError if a file of prepared data is missing or has another size, or with `verify` another content."""
    if not FILE_NAME.fullmatch(entry.name):
        raise damaged(folder, MANIFEST, f"names a file {entry.name!r}, which cannot be one of its own")
    path = folder / entry.name
    try:
        size = require_regular(path)
        if size != entry.bytes:
            raise damaged(folder, entry.name, f"has {size:,} bytes instead of {entry.bytes:,}")
        if verify and sha256_of_file(path) != entry.sha256:
            raise damaged(folder, entry.name, "does not have the content it was written with")
    except OSError as error:
        raise damaged(folder, entry.name, error.strerror or "cannot be read") from error


def open_store(folder: Path, corpus: CorpusEntry, files: Sequence[FileEntry]) -> PairStore:
    """The pairs of one corpus; DataError if its files are not of the size that they were written with."""
    sizes = {entry.name: entry.bytes for entry in files}

    def open_array(kind: str, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
        name = f"{corpus.name}.{kind}"
        if sizes.get(name) != count * dtype.itemsize:
            raise damaged(folder, MANIFEST, f"and {name} disagree on the number of tokens or pairs")
        if count == 0:
            return np.zeros(0, dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(folder / name, dtype, "r", shape=(count,)))

    def open_side(side: str, count: SideCount) -> Side:
        return Side(
            open_array(f"{side}.tokens", TOKEN_TYPE, count.tokens),
            open_array(f"{side}.lengths", LENGTH_TYPE, corpus.pairs),
            open_array(f"{side}.offsets", OFFSET_TYPE, corpus.pairs + 1),
        )

    sides = (open_side("source", corpus.source), open_side("target", corpus.target))
    return PairStore(sides, corpus.name, folder)


def damaged(folder: Path, name: str, what: str) -> DataError:
    """The error for prepared data whose file `name` is damaged."""
    return DataError(f"prepared data are damaged: {name} {what}; {how_to_prepare_again(folder)}")


def how_to_prepare_again(folder: Path) -> str:
    """What to do about prepared data that cannot be used. Only what has the name of prepared data is for deleting:
    the path may come from an untrusted run folder, and point anywhere.
    """
    if PREPARED_FOLDER.search(str(folder)):
        return f"delete {folder} and prepare again"
    return f"{folder} does not look like a folder of prepared data: leave it as it is, and prepare again"
