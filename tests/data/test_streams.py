from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from echelon.data import streams
from echelon.data.corpora import FilePair, LineReader
from echelon.data.streams import BlockReader, FileLocation
from echelon.errors import DataError
from tests.archives import sparse_tar
from tests.data.packers import PACKERS

MEMBERS = {"training/x.de-en.en": b"a\nb\n", "training/x.de-en.de": b"A\nB\n", "big": b"0123456789" * 200_000}


def rle_frame(blocks: int, window_log: int = 17) -> bytes:
    """A zstd frame in which every 4 bytes stand for 128 KiB, as compressors do not write it."""
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"0"
    last = (1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd" + bytes([0, (window_log - 10) << 3]) + block * blocks + last


ZEROS = b"0" * (40 << 20)
DENSE: dict[str, Callable[[], bytes]] = {
    **{name: partial(packer, ZEROS) for name, packer in PACKERS.items()},
    "zst of another": lambda: rle_frame(320),
}


def tar_of(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


@pytest.mark.parametrize("packer", [bytes, *PACKERS.values()])
def test_members_of_a_tar_file_are_read_side_by_side(
    packer: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "corpus.tar.gz"
    path.write_bytes(packer(tar_of({"big": MEMBERS["big"], **MEMBERS})))
    pair = FilePair("x", FileLocation(path, "training/x.de-en.en"), FileLocation(path, "training/x.de-en.de"))
    assert list(pair.pairs()) == [(b"a", b"A"), (b"b", b"B")]
    assert pair.bytes_read == pair.size_bytes
    assert list(tmp_path.iterdir()) == [path], "nothing is unpacked"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_members_that_python_decompresses_whole_are_refused(method: int, tmp_path: Path) -> None:
    path = tmp_path / "dense.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("zeros", ZEROS)
    with pytest.raises(DataError, match=r"dense\.zip cannot be read: compression method .* of zeros is not"):
        next(iter(BlockReader(FileLocation(path, "zeros"))))


@pytest.mark.parametrize("packing", DENSE)
def test_few_bytes_that_stand_for_many_are_decompressed_in_pieces(packing: str) -> None:
    packed = DENSE[packing]()
    assert len(packed) < streams.READ_BYTES
    whole = b""
    for block in streams.decompressed(iter([packed])):
        assert len(block) <= streams.PIECE_BYTES
        whole += block
    assert whole == ZEROS


def test_a_zstd_frame_may_ask_for_the_largest_window_of_the_command_line_and_no_larger(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines.zst"
    path.write_bytes(rle_frame(1, window_log=31))
    assert sum(map(len, BlockReader(FileLocation(path)))) == 128 << 10
    path.write_bytes(rle_frame(1, window_log=32))
    with pytest.raises(DataError, match=r"lines\.zst: the compressed data is damaged .*memory"):
        list(BlockReader(FileLocation(path)))


def test_few_bytes_that_stand_for_billions_of_lines_are_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "EXPANSION_FROM_BYTES", 1 << 22)
    path = tmp_path / "lines.zst"
    path.write_bytes(PACKERS["zst"](b"\n" * (1 << 26)))
    assert path.stat().st_size < 1 << 16
    with pytest.raises(DataError, match=r"lines\.zst: unpacks to more than 200 times its size"):
        deque(BlockReader(FileLocation(path)), maxlen=0)


def test_a_member_of_a_zip_is_held_to_the_same_whatever_its_directory_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "EXPANSION_FROM_BYTES", 1 << 22)
    path = tmp_path / "lines.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.en", b"\n" * (1 << 24))
    honest = path.read_bytes()
    entry = honest.rindex(b"PK\x01\x02")  # of the central directory, with the packed size at 20
    larger = honest[: entry + 20] + struct.pack("<I", 2**31) + honest[entry + 24 :]
    noticed = (
        "ends early|Overlapped entries"  # the latter by Pythons that look for it, such as Debian's 3.11.2
    )
    for content, problem in ((honest, "unpacks to more than 200 times its size"), (larger, noticed)):
        path.write_bytes(content)
        with pytest.raises(DataError, match=problem):
            deque(BlockReader(FileLocation(path, "x.en")), maxlen=0)


def test_a_file_with_holes_in_a_tar_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "holes.tar"
    path.write_bytes(sparse_tar("x.en", 2**24))
    with pytest.raises(DataError, match=r"x\.en is a file with holes in it"):
        next(iter(BlockReader(FileLocation(path, "x.en"))))


@pytest.mark.parametrize("packer", PACKERS.values())
@pytest.mark.parametrize("piece_bytes", [1, 7, 1000, 1 << 20])
def test_pieces_of_any_size_are_the_whole(
    packer: Callable[[bytes], bytes], piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PIECE_BYTES", piece_bytes)
    content = bytes(range(250)) * 8 + b"0" * 2000
    packed = packer(content) + packer(b"") + packer(content[:1000]) + bytes(8)
    for block_bytes in (1, 5, len(packed)):
        blocks = (packed[start : start + block_bytes] for start in range(0, len(packed), block_bytes))
        assert b"".join(streams.decompressed(blocks)) == content + content[:1000]
    with pytest.raises(EOFError):
        list(streams.decompressed(iter([packer(content)[:-1]])))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [(6, 1, "encrypted, password required"), (8, 99, "compression method 99 of x.en is not supported")],
)
def test_a_zip_file_that_we_cannot_open_is_the_user_s_to_unpack(
    tmp_path: Path, offset: int, value: int, message: str
) -> None:
    path = tmp_path / "corpus.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.en", "a\n")
    content = bytearray(path.read_bytes())
    for start in (0, content.index(b"PK\x01\x02") + 2):  # in the member's own header, and in the directory
        content[start + offset] = value
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"{message}.*; unpack it, and name the files"):
        list(BlockReader(FileLocation(path, "x.en")))


def test_a_zip_file_with_a_damaged_name_is_named(tmp_path: Path) -> None:
    path = tmp_path / "corpus.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("é", "a\n")
    path.write_bytes(path.read_bytes().replace("é".encode(), b"\xff\xff"))
    with pytest.raises(DataError, match=r"corpus\.zip: is no archive, or a damaged one .*fetch it again"):
        list(BlockReader(FileLocation(path, "x")))


def test_members_of_a_zip_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in MEMBERS.items():
            archive.writestr(name, content)
    assert list(LineReader(FileLocation(path, "training/x.de-en.de"))) == [b"A", b"B"]
    with pytest.raises(DataError, match=r"has no member x; it has training/x\.de-en\.en"):
        list(LineReader(FileLocation(path, "x")))


def test_a_compressed_member_is_decompressed_too(tmp_path: Path) -> None:
    path = tmp_path / "corpus.tar"
    path.write_bytes(tar_of({"./x.en.gz": gzip.compress(b"a\nb\n")}))
    assert list(LineReader(FileLocation(path, "x.en.gz"))) == [b"a", b"b"]


def test_a_member_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "corpus.tar"
    path.write_bytes(tar_of(MEMBERS))
    with pytest.raises(
        DataError, match=r"no member training/x\.de-en\.fr; did you mean training/x\.de-en\.\w\w\?"
    ):
        list(LineReader(FileLocation(path, "training/x.de-en.fr")))


@pytest.mark.parametrize(
    ("member", "message"),
    [
        ("x/hard.en", "x/hard.en is a link to x/a.en; name that"),
        ("x/soft.en", "x/soft.en is a link to a.en; name that"),
        ("x", "x is a folder; name a file in it"),
        ("x/pipe.en", "x/pipe.en is no file"),
        ("x/aa.en", "has no member x/aa.en; did you mean x/a.en?"),
        ("x/sofd.en", "has no member x/sofd.en; did you mean x/a.en?"),
    ],
)
def test_an_entry_that_is_no_file_is_told_from_one_that_is_not_there(
    member: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "links.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind, link in (
            ("x", tarfile.DIRTYPE, ""),
            ("x/a.en", tarfile.REGTYPE, ""),
            ("x/hard.en", tarfile.LNKTYPE, "x/a.en"),
            ("./x/soft.en", tarfile.SYMTYPE, "../a.en"),
            ("x/pipe.en", tarfile.FIFOTYPE, ""),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, link
            archive.addfile(entry)
    with pytest.raises(DataError) as caught:
        list(BlockReader(FileLocation(path, member)))
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize(
    "content", [b"text\n" * 3000, gzip.compress(tar_of(MEMBERS))[:-3000], tar_of(MEMBERS)[:5000]]
)
def test_what_is_no_archive_or_ends_early_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "corpus.tgz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"no archive|ends early|damaged"):
        list(LineReader(FileLocation(path, "big")))


@pytest.mark.parametrize(
    ("name", "suffix"), [("a.tmx", ".tmx"), ("a.TMX.gz", ".tmx"), ("a.po", ".po"), ("a.gz", ""), ("a", "")]
)
def test_the_ending_of_the_text_is_found_below_that_of_the_compression(name: str, suffix: str) -> None:
    assert FileLocation(Path("x") / name).text_suffix == suffix
    assert FileLocation(Path("x.tar.gz"), f"folder.d/{name}").text_suffix == suffix
