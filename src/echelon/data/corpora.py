"""Parallel text as it lies on disk: two files, plain or compressed, whose lines translate each other.

Lines end at '\\n' alone. `str.splitlines` would also cut at U+2028, U+0085 and others, which occur inside
sentences and would shift one side against the other.
"""

from __future__ import annotations

import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, Protocol

import zstandard

from echelon.errors import DataError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
READ_BYTES = 1 << 16
LONGEST_LINE_BYTES = 1 << 24
CHUNK_LINES = 4096
CHUNK_BYTES = 1 << 22


class Decoder(Protocol):
    """What zlib, lzma and zstandard have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


# A frame may ask for a window of up to 2 GiB (`zstd --long=31`), which zstandard refuses by default.
DECODERS: dict[bytes, Callable[[], Decoder]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj(),
}


class LineReader:
    """The lines of one file, as bytes without their line ends, read in bounded memory.

    Compression is recognised by content. Iterating raises DataError, naming the file, where it is missing, a
    folder, unreadable, empty, cut short or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bytes_read = 0
        """Bytes of the file itself, so compressed ones where it is compressed."""
        self.lines_read = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._naming_the_file(), self.path.open("rb") as file:
            for line in _lines(self._blocks(file), self.path):
                self.lines_read += 1
                yield line
        if self.lines_read == 0:
            raise DataError(f"{self.path} is empty")

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """The file's bytes, decompressed; several compressed streams may follow each other."""
        start = file.read(6)
        file.seek(0)
        new_decoder = next((new for magic, new in DECODERS.items() if start.startswith(magic)), None)
        decoder: Decoder | None = None
        while data := file.read(READ_BYTES):
            self.bytes_read += len(data)
            if new_decoder is None:
                yield data
                continue
            while decoder is not None or (data := data.lstrip(b"\0")):  # zeros may pad the end of a stream
                decoder = decoder or new_decoder()
                yield decoder.decompress(data)
                if not decoder.eof:
                    break
                data, decoder = decoder.unused_data, None
        if decoder is not None:
            raise EOFError

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise DataError(f"{self.path} does not exist") from error
        except IsADirectoryError as error:
            raise DataError(f"{self.path} is a folder; name a text file") from error
        except PermissionError as error:
            raise DataError(f"{self.path} may not be read by this user; change its permissions") from error
        except EOFError as error:
            raise DataError(
                f"{self.path}, line {self.lines_read + 1:,}: the compressed data ends early; fetch it again"
            ) from error
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            where = f"{self.path}, line {self.lines_read + 1:,}"
            raise DataError(f"{where}: the compressed data is damaged ({error}); fetch it again") from error
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror or error}") from error


def _lines(blocks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Cut blocks at '\\n'; '\\r\\n' is taken for a line end too, and a byte order mark is left out."""
    rest = b""
    at_start = True
    for block in blocks:
        rest += block
        if at_start and len(rest) >= len(BYTE_ORDER_MARK):
            rest = rest.removeprefix(BYTE_ORDER_MARK)
            at_start = False
        *whole, rest = rest.split(b"\n")
        if len(rest) > LONGEST_LINE_BYTES:
            raise DataError(f"{path} has a line of more than {LONGEST_LINE_BYTES >> 20} MiB; is it text?")
        for line in whole:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest.removesuffix(b"\r")


class ParallelText(Protocol):
    """Pairs of lines, wherever they come from."""

    @property
    def label(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    def pairs(self) -> Iterator[tuple[bytes, bytes]]: ...


class FilePair:
    """Two files whose lines belong together."""

    def __init__(self, label: str, source: Path, target: Path) -> None:
        self.label = label
        self.source = source
        self.target = target
        self._readers: tuple[LineReader, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.source, self.target))

    @property
    def bytes_read(self) -> int:
        """How much of `size_bytes` the last iteration has read so far."""
        return sum(reader.bytes_read for reader in self._readers)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Every pair, in the files' order; DataError with both counts where the files differ in length."""
        source, target = self._readers = LineReader(self.source), LineReader(self.target)
        for source_line, target_line in zip_longest(source, target):
            if source_line is None or target_line is None:
                continue  # the longer file is read to its end, so that the message can give its length
            yield source_line, target_line
        if source.lines_read != target.lines_read:
            raise DataError(
                f"{self.source} has {source.lines_read:,} lines, "
                f"but {self.target} has {target.lines_read:,}; their lines must translate each other"
            )


@dataclass(frozen=True)
class Chunk:
    """Some consecutive pairs as raw bytes, small enough to hand to another process."""

    source_name: str
    target_name: str
    first_line: int
    """Number of the first line in its file, counted from 1."""
    source: bytes
    """The lines, joined by '\\n'."""
    target: bytes

    def decode(self) -> tuple[list[str], list[str]]:
        """Both sides' lines; DataError naming file and line where one is not UTF-8."""
        source = _decode(self.source, self.source_name, self.first_line)
        target = _decode(self.target, self.target_name, self.first_line)
        return source.split("\n"), target.split("\n")


def _decode(block: bytes, name: str, first_line: int) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        line = first_line + block.count(b"\n", 0, error.start)
        bad = block[error.start : error.start + 1].hex()
        raise DataError(
            f"{name}, line {line:,}: byte 0x{bad} is not UTF-8; convert the file to UTF-8"
        ) from error


def chunks(text: ParallelText) -> Iterator[Chunk]:
    """The whole text in chunks of bounded size."""
    names = (str(text.source), str(text.target)) if isinstance(text, FilePair) else (text.label, text.label)
    source: list[bytes] = []
    target: list[bytes] = []
    first_line, held_bytes = 1, 0
    for source_line, target_line in text.pairs():
        source.append(source_line)
        target.append(target_line)
        held_bytes += len(source_line) + len(target_line)
        if len(source) == CHUNK_LINES or held_bytes > CHUNK_BYTES:
            yield Chunk(*names, first_line, b"\n".join(source), b"\n".join(target))
            first_line, held_bytes = first_line + len(source), 0
            source, target = [], []
    if source:
        yield Chunk(*names, first_line, b"\n".join(source), b"\n".join(target))


def resolve(path: str, recipe_folder: Path) -> Path:
    """Where a path named in a recipe is: beside the recipe, else under $ECHELON_DATA."""
    given = Path(path).expanduser()
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
    raise DataError(f"{path} does not exist; looked at {', '.join(map(str, places))}{hint}")
