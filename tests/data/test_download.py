from __future__ import annotations

import base64
import errno
import gzip
import hashlib
import multiprocessing
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from echelon.data import download
from echelon.data.download import Wanted, fetch
from echelon.data.download_record import FETCHED, first_fetches, how_to_fetch_again
from echelon.data.streams import BlockReader, FileLocation
from echelon.errors import DataError, UserError
from tests.data.mirror import Mirror
from tests.data.packers import PACKERS
from tests.data.test_streams import tar_of

CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    made = Mirror(CONTENT)
    yield made
    made.close()


@pytest.fixture
def second() -> Iterator[Mirror]:
    made = Mirror(CONTENT)
    yield made
    made.close()


def left_over(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"file.bin", FETCHED}


def test_a_file_is_fetched_once_with_progress(mirror: Mirror, tmp_path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    wanted = Wanted("file.bin", [mirror.url], len(CONTENT), SHA256)
    path = fetch(wanted, tmp_path, lambda done, total: told.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert told[0] == (0, len(CONTENT))
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert fetch(wanted, tmp_path) == path
    assert mirror.ranges == [None]
    assert left_over(tmp_path) == set()


def test_broken_connections_are_resumed_where_they_broke(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks_after = [100_000, 50_000, 0, 1]
    path = fetch(Wanted("file.bin", [mirror.url], None, SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert mirror.ranges == [None, "bytes=100000-", "bytes=150000-", "bytes=150000-", "bytes=150001-"]


def test_a_server_without_ranges_begins_again(mirror: Mirror, tmp_path: Path) -> None:
    mirror.knows_ranges = False
    mirror.breaks_after = [100_000]
    assert fetch(Wanted("file.bin", [mirror.url]), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges == [None, "bytes=100000-"]


@pytest.mark.parametrize("knows_conditions", [True, False])
def test_a_file_that_changed_meanwhile_is_fetched_whole(
    knows_conditions: bool, mirror: Mirror, tmp_path: Path
) -> None:
    mirror.knows_conditions = knows_conditions
    mirror.breaks_after = [100_000, 0, 0, 0]
    with pytest.raises(DataError):
        fetch(Wanted("file.bin", [mirror.url]), tmp_path)
    mirror.breaks_after = []
    mirror.content = random.Random(2).randbytes(200_000)
    assert fetch(Wanted("file.bin", [mirror.url]), tmp_path).read_bytes() == mirror.content


def test_the_next_process_goes_on_where_a_killed_one_was(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks_after = [120_000]
    wanted = Wanted("file.bin", [mirror.url], None, SHA256)
    process = multiprocessing.get_context("spawn").Process(target=_fetch_and_die, args=(wanted, tmp_path))
    process.start()
    process.join()
    assert process.exitcode == 9
    assert (tmp_path / "file.bin.partial").stat().st_size == 120_000
    assert not (tmp_path / "file.bin").exists()
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert mirror.ranges == [None, "bytes=120000-"]
    assert left_over(tmp_path) == set()


def _fetch_and_die(wanted: Wanted, folder: Path) -> None:
    download.time.sleep = lambda seconds: os._exit(9)  # type: ignore[attr-defined]
    fetch(wanted, folder)


def test_the_second_mirror_takes_over_and_goes_on(mirror: Mirror, second: Mirror, tmp_path: Path) -> None:
    mirror.breaks_after = [100_000, 0, 0, 0]
    path = fetch(Wanted("file.bin", [mirror.url, second.url], None, SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert second.ranges == ["bytes=100000-"]


def test_halves_of_two_mirrors_are_not_joined_without_a_hash(
    mirror: Mirror, second: Mirror, tmp_path: Path
) -> None:
    mirror.breaks_after = [100_000, 0, 0, 0]
    second.content = random.Random(3).randbytes(250_000)
    assert fetch(Wanted("file.bin", [mirror.url, second.url]), tmp_path).read_bytes() == second.content
    assert second.ranges == [None]


def test_a_mirror_that_has_nothing_takes_nothing_away(mirror: Mirror, second: Mirror, tmp_path: Path) -> None:
    mirror.breaks_after = [100_000, 0, 0]
    second.breaks_after = [0, 0, 0]
    wanted = Wanted("file.bin", [mirror.url, "http://127.0.0.1:9/file.bin", second.url])
    with pytest.raises(DataError):
        fetch(wanted, tmp_path)
    assert (tmp_path / "file.bin.partial").stat().st_size == 100_000
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT
    assert mirror.ranges[-1] == "bytes=100000-"


def test_the_date_tells_versions_apart_where_the_tag_is_weak(mirror: Mirror, tmp_path: Path) -> None:
    mirror.tag, mirror.date = 'W/"{}"', "Mon, 01 Jan 2024 00:00:00 GMT"
    mirror.breaks_after = [100_000]
    assert fetch(Wanted("file.bin", [mirror.url]), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges == [None, "bytes=100000-"]
    assert mirror.conditions == [None, mirror.date]


@pytest.mark.parametrize("tag", ['W/"{}"', None])
def test_without_a_mark_of_the_version_nothing_is_joined(
    mirror: Mirror, tmp_path: Path, tag: str | None
) -> None:
    mirror.tag = tag
    mirror.breaks_after = [100_000]
    assert fetch(Wanted("file.bin", [mirror.url]), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges == [None, None]


def test_a_full_disk_is_not_a_broken_connection(mirror: Mirror, second: Mirror, tmp_path: Path) -> None:
    def on_bytes(done: int, total: int | None) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        fetch(Wanted("file.bin", [mirror.url, second.url]), tmp_path, on_bytes)
    assert (mirror.ranges, second.ranges) == ([None], [])


def test_a_mirror_with_another_file_is_passed_over(mirror: Mirror, second: Mirror, tmp_path: Path) -> None:
    mirror.content = CONTENT[:-1] + b"x"
    path = fetch(Wanted("file.bin", [mirror.url, second.url], len(CONTENT), SHA256), tmp_path)
    assert path.read_bytes() == CONTENT
    assert second.ranges == [None]


def test_every_mirror_s_reason_is_told(mirror: Mirror, second: Mirror, tmp_path: Path) -> None:
    mirror.status = 404
    second.content = b"short"
    wanted = Wanted("file.bin", [mirror.url, second.url, "http://127.0.0.1:9/file.bin"], len(CONTENT), SHA256)
    with pytest.raises(DataError) as caught:
        fetch(wanted, tmp_path)
    assert "404 Not Found" in str(caught.value)
    assert "has 5 bytes instead of 300,000" in str(caught.value)
    assert "refused" in str(caught.value)
    assert mirror.ranges == [None], "what is not there is not asked for again"
    assert left_over(tmp_path) == set()


def test_an_unknown_hash_is_written_down_and_compared_with_later(mirror: Mirror, tmp_path: Path) -> None:
    wanted = Wanted("file.bin", [mirror.url])
    path = fetch(wanted, tmp_path)
    first = first_fetches(tmp_path)["file.bin"]
    assert (first["bytes"], first["sha256"], first["url"]) == (len(CONTENT), SHA256, mirror.url)
    path.unlink()
    assert fetch(wanted, tmp_path).read_bytes() == CONTENT
    path.unlink()
    mirror.content = b"another"
    with pytest.raises(DataError, match="when it was first fetched"):
        fetch(wanted, tmp_path)


@pytest.mark.parametrize("tells_length", [True, False])
def test_a_file_that_is_too_long_is_not_fetched_to_its_end(
    mirror: Mirror, second: Mirror, tmp_path: Path, tells_length: bool
) -> None:
    mirror.content, mirror.tells_length = bytes(50 << 20), tells_length
    path = fetch(Wanted("file.bin", [mirror.url, second.url], len(CONTENT)), tmp_path)
    assert path.read_bytes() == CONTENT
    assert mirror.bytes_sent < 25 << 20
    assert second.ranges == [None]
    assert left_over(tmp_path) == set()
    with pytest.raises(DataError, match=r"has [\d,]+ bytes, or more, instead of 10"):
        fetch(Wanted("other.bin", [mirror.url], 10), tmp_path)


def test_a_file_has_its_name_only_when_it_is_on_the_disk(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        synced.append((status.st_ino, (tmp_path / "file.bin").exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    path = fetch(Wanted("file.bin", [mirror.url]), tmp_path)
    assert (path.stat().st_ino, False) in synced
    assert (tmp_path.stat().st_ino, True) in synced


PAGE = b"\n<!DOCTYPE html><html><title>Hotel: log in</title></html>"


def test_a_portal_s_page_is_refused_and_not_remembered(mirror: Mirror, tmp_path: Path) -> None:
    for name in ("wmt/dev.tgz", "dev.tar", "dev.zip", "a.bz2", "a.xz", "a.zst", "a.gz", "a.tmx", "a"):
        mirror.content = PAGE
        with pytest.raises(
            DataError, match=rf": sent a web page .*Hotel: log in.* instead of {name}; does it"
        ):
            fetch(Wanted(name, [mirror.url]), tmp_path)
        assert name not in first_fetches(tmp_path)
        assert not (tmp_path / name).exists()
        mirror.content = gzip.compress(CONTENT)
        assert fetch(Wanted(name, [mirror.url]), tmp_path).read_bytes() == mirror.content


def test_what_is_not_packed_is_no_archive(mirror: Mirror, tmp_path: Path) -> None:
    mirror.content = b"Service unavailable"
    for ending in ("tgz", "tar", "zip", "bz2", "xz", "zst", "gz"):
        with pytest.raises(DataError, match=rf"sent what is no \.{ending} file: it begins with b'Service"):
            fetch(Wanted(f"x.{ending}", [mirror.url]), tmp_path)


def test_archives_of_every_kind_pass(mirror: Mirror, tmp_path: Path) -> None:
    endings = {"tar": bytes, "tgz": PACKERS["gz"], **{f"tar.{name}": pack for name, pack in PACKERS.items()}}
    for ending, packer in endings.items():
        mirror.content = packer(tar_of({"x": b"y"}))
        assert fetch(Wanted(f"x.{ending}", [mirror.url]), tmp_path).exists()


def test_how_a_fetched_file_is_fetched_again_is_said(mirror: Mirror, tmp_path: Path) -> None:
    path = fetch(Wanted("wmt/file.bin", [mirror.url]), tmp_path)
    known = tmp_path / FETCHED
    assert how_to_fetch_again(path) == f"to fetch it again, remove {path} and its entry in {known}"
    assert how_to_fetch_again(tmp_path / "mine.bin") == "fetch it again"
    with pytest.raises(DataError, match=rf"remove {path} and its entry in {known}"):
        list(BlockReader(FileLocation(path, "member")))


def test_what_is_whole_but_not_named_yet_is_not_fetched_again(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "file.bin.partial").write_bytes(CONTENT)
    assert fetch(Wanted("file.bin", [mirror.url], None, SHA256), tmp_path).read_bytes() == CONTENT
    assert mirror.ranges == ["bytes=300000-"]


def test_two_that_want_the_same_file_fetch_it_once(mirror: Mirror, tmp_path: Path) -> None:
    wanted = Wanted("file.bin", [mirror.url], None, SHA256)
    threads = [threading.Thread(target=fetch, args=(wanted, tmp_path)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert mirror.ranges == [None]


def test_secrets_of_an_address_come_from_the_environment_and_are_kept_nowhere(
    mirror: Mirror, second: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the server that it redirects to gets the password, nor any file the password or the token."""
    monkeypatch.setenv("ECHELON_URL_LOGIN", "me:pass%20word")
    monkeypatch.setenv("ECHELON_URL_QUERY", "expires=9&signature=a-signed-secret")
    mirror.redirects_to = second.url
    url = f"{mirror.url.replace('//', '//${ECHELON_URL_LOGIN}@')}?${{ECHELON_URL_QUERY}}"
    assert fetch(Wanted("file.bin", [url]), tmp_path).read_bytes() == CONTENT
    assert mirror.logins == [f"Basic {base64.b64encode(b'me:pass word').decode()}"]
    assert mirror.paths == ["/file.bin?expires=9&signature=a-signed-secret"]
    assert second.logins == [None]
    assert first_fetches(tmp_path)["file.bin"]["url"] == f"{mirror.url.replace('//', '//***@')}?***"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/x?sig=${ECHELON_URL_SECRET}",
        "http://me:${ECHELON_URL_SECRET}@127.0.0.1:1/x",
        "http://127.0.0.1:${ECHELON_URL_SECRET}/x",
        "http://[${ECHELON_URL_SECRET}/x",
    ],
)
def test_no_error_of_fetching_shows_a_secret(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("ECHELON_URL_SECRET", "hunter2/@x y")
    with pytest.raises(DataError, match="could not be fetched") as caught:
        fetch(Wanted("file.bin", [url]), tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_broken_fetch_keeps_no_secret_beside_what_it_has(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setenv("ECHELON_URL_SECRET", "hunter2")
    mirror.breaks_after = [100_000, 0, 0, 0]
    with pytest.raises(DataError):
        fetch(Wanted("file.bin", [f"{mirror.url}?sig=${{ECHELON_URL_SECRET}}&more=public"]), tmp_path)
    assert (tmp_path / "file.bin.partial").stat().st_size == 100_000
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.suffix == ".json")
    assert b"***" in kept
    assert b"hunter2" not in kept


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHELON_URL_SECRET", raising=False)
    with pytest.raises(UserError, match=r"the environment variable ECHELON_URL_SECRET, .*, is not set here"):
        fetch(Wanted("file.bin", ["https://data.example/x?sig=${ECHELON_URL_SECRET}"]), tmp_path)


def test_a_recipe_cannot_send_variables_of_other_programs_anywhere(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t")
    with pytest.raises(UserError, match="begins with ECHELON_URL_"):
        fetch(Wanted("file.bin", [f"{mirror.url}?x=${{AWS_SECRET_ACCESS_KEY}}"]), tmp_path)
    assert mirror.paths == []
