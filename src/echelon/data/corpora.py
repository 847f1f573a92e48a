"""Parallel text on disk: two files, plain or compressed, whose lines are translations of each other.

Lines end at '\\n' alone. `str.splitlines` would also cut at U+2028, U+0085 and others, which occur inside
sentences and would shift one side against the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

from echelon.data.formats import PAIR_READERS, SEGMENT_SUFFIX, Layout, segments, split_lines
from echelon.data.streams import BlockReader, FileLocation
from echelon.errors import DataError

CHUNK_LINES = 4096
CHUNK_BYTES = 1 << 22
_BEGINNING_BYTES = 1 << 16
_LONGEST_CHARACTER = 4
_CONVERT = "Convert it to UTF-8"


class LineReader:
    """The lines of one file, as bytes without their line ends, read in bounded memory.

    Of an SGML file (.sgm), as test sets are published, the segments. Iterating raises DataError, naming the file,
    if it is missing, a folder, unreadable, empty, truncated or damaged.
    """

    def __init__(self, place: FileLocation | Path) -> None:
        self.place = place if isinstance(place, FileLocation) else FileLocation(place)
        self.lines_read = 0
        self._blocks = BlockReader(
            self.place, lambda: f"{self.place}, {_unit(self.place)} {self.lines_read + 1:,}"
        )

    @property
    def bytes_read(self) -> int:
        """Bytes of the file itself, compressed if it is."""
        return self._blocks.bytes_read

    def __iter__(self) -> Iterator[bytes]:
        lines = split_lines(iter(self._blocks), self.place)
        for line in segments(lines, self.place) if self.place.text_suffix == SEGMENT_SUFFIX else lines:
            self.lines_read += 1
            yield line
        if self.lines_read == 0:
            raise DataError(f"{self.place} is empty")


class ParallelText(Protocol):
    """Pairs of lines from any source."""

    @property
    def label(self) -> str: ...
    @property
    def names(self) -> tuple[str, str]:
        """The names of the two sides in messages."""
        ...

    @property
    def units(self) -> tuple[str, str]:
        """The name of a line of each side in messages."""
        ...

    @property
    def places(self) -> dict[str, FileLocation]:
        """The files it is read from, by role; the names include whatever else decides what is read."""
        ...

    @property
    def size_bytes(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    def pairs(self) -> Iterator[tuple[bytes, bytes]]: ...


class FilePair:
    """Two files, or members of archives, whose lines belong together."""

    def __init__(self, label: str, source: FileLocation | Path, target: FileLocation | Path) -> None:
        self.label = label
        self.source = source if isinstance(source, FileLocation) else FileLocation(source)
        self.target = target if isinstance(target, FileLocation) else FileLocation(target)
        self._readers: tuple[LineReader, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        return str(self.source), str(self.target)

    @property
    def units(self) -> tuple[str, str]:
        return _unit(self.source), _unit(self.target)

    @property
    def places(self) -> dict[str, FileLocation]:
        return {_kind("source", self.source): self.source, _kind("target", self.target): self.target}

    @property
    def size_bytes(self) -> int:
        return sum(place.path.stat().st_size for place in self.places.values())

    @property
    def bytes_read(self) -> int:
        """How much of `size_bytes` the last iteration has read so far."""
        return sum(reader.bytes_read for reader in self._readers)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Every pair, in the files' order; DataError with both counts if the files differ in length."""
        source, target = self._readers = LineReader(self.source), LineReader(self.target)
        for source_line, target_line in zip_longest(source, target):
            if source_line is None or target_line is None:
                continue  # the longer file is read to its end, so that the message can give its length
            yield source_line, target_line
        if source.lines_read != target.lines_read:
            _refuse_binary(self.source)
            _refuse_binary(self.target)
            raise DataError(
                f"{self.source} has {source.lines_read:,} {_unit(self.source)}s, but {self.target} has "
                f"{target.lines_read:,} {_unit(self.target)}s; they must translate each other one by one"
            )


def _unit(place: FileLocation) -> str:
    return "segment" if place.text_suffix == SEGMENT_SUFFIX else "line"


def _kind(side: str, place: FileLocation) -> str:
    """A side, with the file ending that marks its lines as segments."""
    return f"{side}{SEGMENT_SUFFIX}" if place.text_suffix == SEGMENT_SUFFIX else side


class PairFile:
    """One file that holds both sides: TSV, TMX, or a gettext catalogue."""

    def __init__(
        self, label: str, place: FileLocation, columns: tuple[int, int], languages: tuple[str, str]
    ) -> None:
        if place.text_suffix not in PAIR_READERS:
            raise DataError(
                f"{place}: its name must end in one of {', '.join(PAIR_READERS)} (or those and .gz)"
            )
        self.label = label
        self._place = place
        self._layout = Layout(str(place), columns, languages)
        self._blocks = BlockReader(place)

    @property
    def names(self) -> tuple[str, str]:
        return str(self._place), str(self._place)

    @property
    def units(self) -> tuple[str, str]:
        return "line", "line"  # of a .tsv; the other formats decode what they read themselves

    @property
    def places(self) -> dict[str, FileLocation]:
        columns = "-".join(map(str, self._layout.columns))
        return {f"pairs{self._place.text_suffix}[{columns}]": self._place}

    @property
    def size_bytes(self) -> int:
        return self._place.path.stat().st_size

    @property
    def bytes_read(self) -> int:
        return self._blocks.bytes_read

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Every pair, in the file's order, each side on one line; DataError if there is none."""
        read = PAIR_READERS[self._place.text_suffix]
        count = 0
        for count, (source, target) in enumerate(read(self._blocks, self._layout), 1):  # noqa: B007
            yield _on_one_line(source), _on_one_line(target)
        if count == 0:
            languages = " and ".join(self._layout.languages)
            raise DataError(f"{self._place} holds no pair of {languages}")


class ChangedText:
    """Another parallel text whose lines are changed as they are read; `how` tells the two apart in a key."""

    def __init__(self, text: ParallelText, how: str, change: Callable[[bytes], bytes]) -> None:
        self.unchanged = text
        self._how = how
        self._change = change

    @property
    def label(self) -> str:
        return self.unchanged.label

    @property
    def names(self) -> tuple[str, str]:
        return self.unchanged.names

    @property
    def units(self) -> tuple[str, str]:
        return self.unchanged.units

    @property
    def places(self) -> dict[str, FileLocation]:
        return {f"{kind}.{self._how}": place for kind, place in self.unchanged.places.items()}

    @property
    def size_bytes(self) -> int:
        return self.unchanged.size_bytes

    @property
    def bytes_read(self) -> int:
        return self.unchanged.bytes_read

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        for source, target in self.unchanged.pairs():
            yield self._change(source), self._change(target)


def _on_one_line(text: bytes) -> bytes:
    return b" ".join(text.split(b"\n")) if b"\n" in text else text


@dataclass(frozen=True)
class Chunk:
    """Some consecutive pairs as raw bytes, small enough to hand to another process."""

    names: tuple[str, str]
    units: tuple[str, str]
    first_line: int
    """Number of the first line, or segment, in its file, counted from 1."""
    source: bytes
    """The lines, joined by '\\n'."""
    target: bytes

    def decode(self) -> tuple[list[str], list[str]]:
        """Both sides' lines; DataError naming file and line if one is not UTF-8."""
        wheres = [f"{name}, {unit}" for name, unit in zip(self.names, self.units, strict=True)]
        source = _decode(self.source, wheres[0], self.first_line)
        target = _decode(self.target, wheres[1], self.first_line)
        return source.split("\n"), target.split("\n")

    def refuse_nul_bytes(self) -> None:
        """DataError naming file and line if there is a NUL byte: it would be read as a space, perhaps within a word."""
        for name, unit, block in zip(self.names, self.units, (self.source, self.target), strict=True):
            if (place := block.find(b"\0")) >= 0:
                line = self.first_line + block.count(b"\n", 0, place)
                raise DataError(f"{name}, {unit} {line:,}: has a NUL byte; is it text? {_CONVERT}")


def _decode(block: bytes, where: str, first_line: int) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        bad = block[error.start : error.start + 1].hex()
        raise DataError(f"{where} {line:,}: byte 0x{bad} is not UTF-8; is it text? {_CONVERT}") from error


def _refuse_binary(place: FileLocation) -> None:
    """DataError if a file does not begin like text, so that its line count means nothing."""
    beginning = next(iter(BlockReader(place)), b"")[:_BEGINNING_BYTES]
    if b"\0" in beginning:
        line = beginning.count(b"\n", 0, beginning.find(b"\0")) + 1
        raise DataError(f"{place}, line {line:,}: has a NUL byte; is it text? {_CONVERT}")
    *lines, rest = beginning.split(b"\n")
    lines = lines or [rest[:-_LONGEST_CHARACTER]]  # the last character may be cut
    if sum(map(_is_broken, lines)) > len(lines) / 2:
        _decode(b"\n".join(lines), f"{place}, line", 1)


def _is_broken(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def chunks(text: ParallelText) -> Iterator[Chunk]:
    """The whole text in chunks of bounded size."""
    source: list[bytes] = []
    target: list[bytes] = []
    first_line, held_bytes = 1, 0
    for source_line, target_line in text.pairs():
        source.append(source_line)
        target.append(target_line)
        held_bytes += len(source_line) + len(target_line)
        if len(source) == CHUNK_LINES or held_bytes > CHUNK_BYTES:
            yield Chunk(text.names, text.units, first_line, b"\n".join(source), b"\n".join(target))
            first_line, held_bytes = first_line + len(source), 0
            source, target = [], []
    if source:
        yield Chunk(text.names, text.units, first_line, b"\n".join(source), b"\n".join(target))


def expand(path: str) -> Path:
    """The path with the home folder in place of ~; DataError if it names an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no such user's home folder here; write the whole path") from None


def resolve(path: str, recipe_folder: Path) -> Path:
    """Resolve a path named in a recipe: beside the recipe, else under $ECHELON_DATA."""
    given = expand(path)
    folders = [recipe_folder]
    if os.environ.get("ECHELON_DATA"):
        folders.append(Path(os.environ["ECHELON_DATA"]))
    places = list(dict.fromkeys(folder / given for folder in folders))  # an absolute path stays what it is
    for place in places:
        try:
            if place.exists():
                return place
        except OSError as error:
            raise DataError(f"{place} cannot be read: {error.strerror}") from error
    hint = "" if len(folders) > 1 or given.is_absolute() else "; ECHELON_DATA names no folder to look in"
    others = [str(place) for place in places if str(place) != str(path)]
    elsewhere = f"; looked at {', '.join(others)}" if others else ""
    raise DataError(f"{path} does not exist{elsewhere}{hint}")
