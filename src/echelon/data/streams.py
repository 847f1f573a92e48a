"""The bytes of a file or archive member in blocks, decompressed while reading, never unpacked to disk."""

from __future__ import annotations

import bz2
import difflib
import io
import lzma
import posixpath
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from echelon.data.download_record import how_to_fetch_again
from echelon.errors import DataError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

READ_BYTES = 1 << 16
PIECE_BYTES = 1 << 20
"""What is decompressed at a time, however much a block stands for."""
TAR_READ_BYTES = 1 << 20
MOST_EXPANSION, EXPANSION_FROM_BYTES = 200, 1 << 26
"""Text shrinks to a tenth, seldom to a hundredth: data that unpacks to 64 MiB and 200 times its size is not text."""
COMPRESSED_SUFFIXES = {".gz", ".xz", ".zst", ".bz2"}
PACKED_SUFFIXES = {*COMPRESSED_SUFFIXES, ".tar", ".tgz", ".txz", ".tbz2", ".zip"}
ZIP_START = b"PK\x03\x04"
ZIP_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""Those that `zipfile` decompresses piece by piece; a few bytes of the others may stand for gigabytes, in one piece."""


class ExpansionError(Exception):
    """A decompression bomb: few bytes expand to far more than any text does."""


class Decompressor(Protocol):
    """The interface of decompressors of zlib, lzma, bz2 and zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int) -> bytes: ...


def _zstd_decoder() -> Decompressor:
    """A decompressor for frames with a window of up to 2 GiB, as `zstd --long=31` writes them."""
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 31})


DECODERS: dict[bytes, Callable[[], Decompressor]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": _zstd_decoder,
    b"BZh": bz2.BZ2Decompressor,
}
_RECOGNISED_BYTES = max(map(len, DECODERS))


@dataclass(frozen=True)
class FileLocation:
    """A file, or a member of the archive that the file is."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.member is None else f"{self.member} in {self.path}"

    @property
    def text_suffix(self) -> str:
        """The ending that tells the text's format: that of x.tmx.gz is .tmx."""
        name = PurePosixPath(self.member or self.path.name)
        return PurePosixPath(name.stem if name.suffix.lower() in COMPRESSED_SUFFIXES else name).suffix.lower()


class BlockReader:
    """The decompressed bytes of a file, read in bounded memory; compression is recognised by content.

    Iterating raises DataError, naming the file, if it is missing, a folder, unreadable, truncated or damaged.
    `where` is what those messages call it.
    """

    def __init__(self, place: FileLocation, where: Callable[[], str] | None = None) -> None:
        self.place = place
        self.bytes_read = 0
        """Bytes of the file itself, compressed if it is."""
        self._where = where or (lambda: str(place))

    def __iter__(self) -> Iterator[bytes]:
        with naming_the_place(self.place, self._where), self.place.path.open("rb") as file:
            if self.place.member is None:
                yield from decompressed(self._raw_blocks(file))
            else:
                yield from self._member_blocks(file, self.place.member)
        self.bytes_read = self.place.path.stat().st_size

    def _raw_blocks(self, file: BinaryIO, content: BinaryIO | None = None) -> Iterator[bytes]:
        while data := (content or file).read(READ_BYTES):
            self.bytes_read = file.tell()
            yield data

    def _member_blocks(self, file: BinaryIO, member: str) -> Iterator[bytes]:
        is_zip = file.read(len(ZIP_START)) == ZIP_START
        file.seek(0)
        with self._open_zip(file, member) if is_zip else self._open_tar(file, member) as content:
            yield from decompressed(self._raw_blocks(file, content))

    @contextmanager
    def _open_zip(self, file: BinaryIO, member: str) -> Iterator[BinaryIO]:
        with zipfile.ZipFile(file) as archive:
            if member not in archive.namelist():
                raise _no_member(self.place, archive.namelist())
            method = archive.getinfo(member).compress_type
            if method not in ZIP_METHODS:
                raise NotImplementedError(f"compression method {method} of {member} is not supported")
            packed = min(archive.getinfo(member).compress_size, self.place.path.stat().st_size)
            with archive.open(member) as content:
                yield _Unpacked(content, packed)  # type: ignore[misc]

    @contextmanager
    def _open_tar(self, file: BinaryIO, member: str) -> Iterator[BinaryIO]:
        blocks = _BlockFile(decompressed(self._raw_blocks(file)))
        files: list[str] = []
        no_file: tarfile.TarInfo | None = None
        with tarfile.open(fileobj=blocks, mode="r|", bufsize=TAR_READ_BYTES) as archive:
            for entry in archive:
                name = entry.name.removeprefix("./")
                is_file = entry.isfile() and not entry.issparse()
                if is_file:
                    files.append(name)
                elif name == member:
                    no_file = entry
                if is_file and name == member:
                    content = archive.extractfile(entry)
                    assert content is not None
                    yield content  # type: ignore[misc]
                    return
        if no_file is not None:
            raise DataError(f"{self.place.path}: {member} is {_what_it_is(no_file)}")
        raise _no_member(self.place, files)


class _Unpacked:
    """The content of a zip's member, held to the same expansion as a compressed file."""

    def __init__(self, content: IO[bytes], packed_bytes: int) -> None:
        self._content = content
        self._packed_bytes = packed_bytes
        self._unpacked_bytes = 0

    def read(self, size: int) -> bytes:
        data = self._content.read(size)
        self._unpacked_bytes += len(data)
        require_text_size(self._unpacked_bytes, self._packed_bytes)
        return data


def require_text_size(unpacked_bytes: int, packed_bytes: int) -> None:
    """ExpansionError if the compressed bytes are too few for that much text."""
    if unpacked_bytes > max(EXPANSION_FROM_BYTES, MOST_EXPANSION * packed_bytes):
        raise ExpansionError


class _BlockFile(io.RawIOBase):
    """Blocks as a file object for `tarfile`."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks

    def read(self, size: int = -1, /) -> bytes:
        """The next block, which may be shorter or longer than requested: `tarfile` accepts either."""
        return next((block for block in self._blocks if block), b"")


def decompressed(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The blocks, decompressed if need be; several compressed streams may follow each other."""
    start = b""
    for block in blocks:
        start += block
        if len(start) >= _RECOGNISED_BYTES:
            break
    blocks = chain([start], blocks)
    new_decoder = next((new for magic, new in DECODERS.items() if start.startswith(magic)), None)
    if new_decoder is None:
        yield from blocks
        return
    decoder: Decompressor | None = None
    packed = unpacked = 0
    for block in blocks:
        data = block
        packed += len(block)
        while decoder is not None or (data := data.lstrip(b"\0")):  # zeros may pad the end of a stream
            decoder = decoder or new_decoder()
            for piece in _pieces(decoder, data):
                unpacked += len(piece)
                require_text_size(unpacked, packed)
                yield piece
            if not decoder.eof:
                break
            data, decoder = decoder.unused_data, None
    if decoder is not None:
        raise EOFError


def _pieces(decoder: Decompressor, data: bytes) -> Iterator[bytes]:
    """The decompressed data, in pieces."""
    is_all = False
    while not is_all:
        piece = decoder.decompress(data, max_length=PIECE_BYTES)
        yield piece
        data = getattr(decoder, "unconsumed_tail", b"")  # the others keep theirs to themselves
        is_all = decoder.eof or (not data and len(piece) < PIECE_BYTES)


def is_packed(start: bytes) -> bool:
    """Whether a file with these first 512 bytes is compressed, or an archive, of a kind that we read."""
    if start.startswith((ZIP_START, *DECODERS)):
        return True
    try:
        tarfile.TarInfo.frombuf(start, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


@contextmanager
def naming_the_place(place: FileLocation, where: Callable[[], str]) -> Iterator[None]:
    """Turn read errors into DataError that says where, and what to do."""
    path = place.path
    try:
        yield
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except IsADirectoryError as error:
        raise DataError(f"{path} is a folder; name a text file") from error
    except PermissionError as error:
        raise DataError(f"{path} may not be read by this user; change its permissions") from error
    except EOFError as error:
        raise DataError(f"{where()}: the compressed data ends early; {how_to_fetch_again(path)}") from error
    except ExpansionError:
        raise DataError(
            f"{where()}: unpacks to more than {MOST_EXPANSION} times its size, which no text does; unpack it yourself "
            "and look at it, and name the unpacked file if it is right"
        ) from None
    except (zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        raise _damaged(where(), error, path) from error
    except RuntimeError as error:  # of a zip file: what is encrypted, or compressed in an unusual way
        raise DataError(f"{path} cannot be read: {error}; unpack it, and name the files") from error
    except (tarfile.TarError, zipfile.BadZipFile, ValueError, struct.error) as error:  # names and sizes, too
        raise DataError(
            f"{path}: is no archive, or a damaged one ({error}); {how_to_fetch_again(path)}"
        ) from error
    except OSError as error:
        if error.errno is None:  # not the system's: bz2 raises it for damaged data
            raise _damaged(where(), error, path) from error
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _damaged(where: str, error: Exception, path: Path) -> DataError:
    return DataError(f"{where}: the compressed data is damaged ({error}); {how_to_fetch_again(path)}")


def _what_it_is(entry: tarfile.TarInfo) -> str:
    """An explanation of a tar entry that is not a file, and what to do."""
    if entry.isdir():
        return "a folder; name a file in it"
    if entry.islnk() or entry.issym():  # a symbolic link is seen from its own folder
        folder = PurePosixPath(entry.name).parent if entry.issym() else PurePosixPath()
        return f"a link to {posixpath.normpath(folder / entry.linkname)}; name that"
    return "a file with holes in it; unpack it, and name the file" if entry.issparse() else "no file"


def _no_member(place: FileLocation, names: list[str]) -> DataError:
    near = difflib.get_close_matches(place.member or "", names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names[:5]) or 'none'}"
    return DataError(f"{place.path} has no member {place.member}; {hint}")
