from __future__ import annotations

import gzip
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echelon.data import corpora, formats, streams
from echelon.data.corpora import FilePair, LineReader, chunks, resolve
from echelon.data.subwords import SubwordText
from echelon.errors import DataError
from tests.data.packers import PACKERS

ALL_PACKERS = {"plain": bytes, **PACKERS}
NOBODY = 65534
"""The number of a user who owns nothing."""

lines_of_bytes = st.lists(
    st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"").rstrip(b"\r")), min_size=1, max_size=20
)


def read(path: Path) -> list[bytes]:
    return list(LineReader(path))


def file_pair(folder: Path, source: bytes, target: bytes) -> FilePair:
    (folder / "s").write_bytes(source)
    (folder / "t").write_bytes(target)
    return FilePair("s | t", folder / "s", folder / "t")


@pytest.mark.parametrize("packer", ALL_PACKERS)
def test_compression_is_recognised_by_content_and_not_by_name(packer: str, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt.gz"
    path.write_bytes(ALL_PACKERS[packer]("één\nzwei\n\nvier\n".encode()))
    assert read(path) == ["één".encode(), b"zwei", b"", b"vier"]


@pytest.mark.parametrize("packer", PACKERS)
def test_compressed_streams_may_follow_each_other(packer: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    padding = b"\0" * 8 if packer != "zst" else b""
    path.write_bytes(PACKERS[packer](b"a\nb") + padding + PACKERS[packer](b"c\n") + padding)
    assert read(path) == [b"a", b"bc"]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(lines=lines_of_bytes, packer=st.sampled_from(sorted(ALL_PACKERS)), block=st.integers(1, 40))
def test_what_was_written_is_read_whatever_the_block_size(
    lines: list[bytes], packer: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "READ_BYTES", block)
    text = b"".join(line + b"\n" for line in lines)
    if packer == "plain" and any(text.startswith(magic) for magic in streams.DECODERS):
        return
    path = tmp_path / "lines"
    path.write_bytes(ALL_PACKERS[packer](formats.BYTE_ORDER_MARK + text))
    assert read(path) == lines


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes("a\u2028b\u0085c\x0bd\x1ce\rf\r\ng".encode())
    assert read(path) == ["a\u2028b\u0085c\x0bd\x1ce\rf".encode(), b"g"]


def test_size_and_bytes_read_are_those_of_the_compressed_files(tmp_path: Path) -> None:
    text = file_pair(tmp_path, gzip.compress(b"a\n" * 9999), b"b\n" * 9999)
    assert sum(chunk.source.count(b"a") for chunk in chunks(text)) == 9999
    assert text.bytes_read == text.size_bytes == sum((tmp_path / name).stat().st_size for name in "st")


@pytest.mark.parametrize("packer", PACKERS)
def test_truncated_file_is_named_with_the_line(packer: str, tmp_path: Path) -> None:
    path = tmp_path / "cut"
    whole = PACKERS[packer](os.urandom(3000).hex().encode() + b"\n")
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cut, line 1: the compressed data ends early"):
        read(path)


@pytest.mark.parametrize("packer", PACKERS)
def test_damaged_file_is_named(packer: str, tmp_path: Path) -> None:
    path = tmp_path / "damaged"
    whole = bytearray(PACKERS[packer](os.urandom(3000).hex().encode() + b"\n"))
    whole[len(whole) // 2 :] = bytes(byte ^ 0x55 for byte in whole[len(whole) // 2 :])
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"damaged, line 1: the compressed data (is damaged|ends early)"):
        read(path)


def test_missing_empty_and_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "nothing.gz").write_bytes(gzip.compress(b""))
    for name, message in (
        ("missing", "missing does not exist"),
        ("empty", "empty is empty"),
        ("nothing.gz", "nothing.gz is empty"),
        (".", "is a folder"),
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path / name)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """This process is not root's: root may read everything."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    yield
    os.seteuid(before)


@pytest.mark.usefixtures("ordinary_user")
def test_file_without_permission_is_named() -> None:
    # In /tmp, because only root may enter other temporary folders if root runs the tests.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "secret"
        path.write_bytes(b"a\n")
        path.chmod(0)
        with pytest.raises(DataError, match="secret may not be read by this user"):
            read(path)


def test_permission_error_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match="secret may not be read by this user"):
        read(tmp_path / "secret")


def test_endless_line_does_not_fill_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LONGEST_LINE_BYTES", 1000)
    (tmp_path / "binary").write_bytes(b"x" * 2000)
    with pytest.raises(DataError, match="is it text"):
        read(tmp_path / "binary")


@pytest.mark.parametrize(("source", "target"), [(7, 5), (5, 7), (9000, 1)])
def test_both_counts_are_given_where_files_differ_in_length(source: int, target: int, tmp_path: Path) -> None:
    text = file_pair(tmp_path, b"a\n" * source, b"b\n" * target)
    with pytest.raises(DataError, match=f"s has {source:,} lines, but .*t has {target:,}"):
        list(text.pairs())


@pytest.mark.parametrize("line", [1, 4096, 4097, 6000])
def test_line_that_is_not_utf8_is_named(line: int, tmp_path: Path) -> None:
    lines = [b"ok"] * 6000
    lines[line - 1] = "schön".encode("latin-1")
    text = file_pair(tmp_path, b"fine\n" * 6000, b"\n".join(lines))
    with pytest.raises(DataError, match=f"t, line {line:,}: byte 0xf6 is not UTF-8"):
        [chunk.decode() for chunk in chunks(text)]


def test_lines_that_end_in_carriage_returns_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"s: its lines end in carriage returns \(CR\) alone; .*tr '.r' '.n'"):
        list(file_pair(tmp_path, b"one\rtwo\rthree\r", b"eins\nzwei\ndrei\n").pairs())
    stray = file_pair(tmp_path, b"one\rmore\ntwo\n", b"eins\nzwei\n")
    assert [source for source, _ in stray.pairs()] == [b"one\rmore", b"two"]


def test_files_that_are_no_text_are_said_to_be_that_and_not_to_differ_in_length(tmp_path: Path) -> None:
    dice = random.Random(1)
    noise = [dice.randbytes(5000) for _ in range(2)]
    with pytest.raises(DataError, match=r"s, line \d+: has a NUL byte; is it text\? Convert it to UTF-8"):
        list(file_pair(tmp_path, *noise).pairs())
    others = [content.replace(b"\0", b"") for content in noise]
    with pytest.raises(DataError, match=r"s, line 1: byte 0x.. is not UTF-8; is it text\? Convert it"):
        list(file_pair(tmp_path, *others).pairs())
    with pytest.raises(DataError, match=r"t, line 1: has a NUL byte; is it text\? Convert it to UTF-8"):
        list(file_pair(tmp_path, b"one\ntwo\n", "eins\nzwei\ndrei\n".encode("utf-16-le")).pairs())


def test_segments_are_counted_as_segments(tmp_path: Path) -> None:
    source, target = tmp_path / "s.sgm", tmp_path / "t"
    source.write_bytes("<doc>\n\n<seg>a</seg>\n\n\n<seg>schön</seg>\n".encode("latin-1"))
    target.write_bytes("a\nschön\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"s\.sgm, segment 2: byte 0xf6 is not UTF-8"):
        [chunk.decode() for chunk in chunks(FilePair("x", source, target))]
    with pytest.raises(DataError, match=r"t, line 2: byte 0xf6 is not UTF-8"):
        [chunk.decode() for chunk in chunks(SubwordText(FilePair("x", target, source)))]
    target.write_bytes(b"a\n")
    with pytest.raises(DataError, match=r"s\.sgm has 2 segments, but .*t has 1 lines"):
        list(FilePair("x", source, target).pairs())
    source.write_bytes(gzip.compress(b"<seg>a</seg>\n<seg>" + os.urandom(3000).hex().encode())[:-100])
    with pytest.raises(DataError, match=r"s\.sgm, segment 2: the compressed data ends early"):
        read(source)


def test_chunks_join_to_the_whole_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "CHUNK_BYTES", 5000)
    source = [f"s{i}" * (i % 50) for i in range(5000)]
    target = [f"t{i}" for i in range(5000)]
    text = file_pair(tmp_path, "\n".join(source).encode() + b"\n", "\n".join(target).encode())
    made = list(chunks(text))
    decoded = [chunk.decode() for chunk in made]
    assert [line for lines, _ in decoded for line in lines] == source
    assert [line for _, lines in decoded for line in lines] == target
    assert len(made) > 10
    assert [chunk.first_line for chunk in made][:1] == [1]


def test_path_is_looked_for_beside_the_recipe_then_in_echelon_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes, data = tmp_path / "recipes", tmp_path / "data"
    recipes.mkdir()
    data.mkdir()
    monkeypatch.setenv("ECHELON_DATA", str(data))
    (data / "x.en").touch()
    assert resolve("x.en", recipes) == data / "x.en"
    (recipes / "x.en").touch()
    assert resolve("x.en", recipes) == recipes / "x.en"
    assert resolve(str(data / "x.en"), recipes) == data / "x.en"


def test_missing_path_tells_every_place_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHELON_DATA", "/nowhere")
    with pytest.raises(DataError) as caught:
        resolve("x.en", tmp_path)
    assert str(caught.value) == f"x.en does not exist; looked at {tmp_path}/x.en, /nowhere/x.en"
    monkeypatch.delenv("ECHELON_DATA")
    with pytest.raises(DataError, match="ECHELON_DATA names no folder"):
        resolve("x.en", tmp_path)


def test_the_home_folder_of_nobody_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"~nosuchuser/train\.en: there is no such user's home folder"):
        resolve("~nosuchuser/train.en", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.en").touch()
    assert resolve("~/train.en", Path("/nowhere")) == tmp_path / "train.en"
