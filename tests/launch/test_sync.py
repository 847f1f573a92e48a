"""Folders copied to hosts: whole, resumed, mended; real processes at both ends, here and over a real ssh server."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from echelon.errors import DataError, RemoteError
from echelon.launch.dialogue import Dialogue
from echelon.launch.receive import SentFile, SyncReceiver
from echelon.launch.ssh import Remote
from echelon.launch.sync import sync_folder, sync_hosts
from tests.sshd import Sshd

SIZES = {
    "manifest.json": 300,
    "train-0.source.tokens": 5_000_001,
    "valid/empty.text": 0,
    "x.tokens": 2_000_000,
}
TOTAL = sum(SIZES.values())
HERE = Remote("localhost")


class StoppedError(Exception):
    """The user, or a power cut, in the middle of it."""


def stop_after(limit: int) -> Callable[[str, int, int], None]:
    def progress(host: str, sent: int, total: int) -> None:
        if sent >= limit:
            raise StoppedError

    return progress


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for name, size in SIZES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(random.Random(name).randbytes(size))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "there" / "target"


def test_a_folder_is_copied_to_several_hosts_at_once(sshd: Sshd, source: Path, tmp_path: Path) -> None:
    """All names are one machine, so the hosts share the target among themselves: one copies, the others find it."""
    target = tmp_path / "there" / "target"
    remotes = [Remote(name, sshd.config) for name in ("alpha", "beta")]
    results = sync_hosts([*remotes, Remote("no-such-host.invalid", sshd.config)], source, target)
    for remote in remotes:
        remote.close()
    assert isinstance(results.pop("no-such-host.invalid"), RemoteError)
    sent = [result for result in results.values() if isinstance(result, int)]
    assert sorted(sent) == [0, TOTAL]
    assert contents(target) == contents(source)
    assert [path.name for path in target.parent.iterdir()] == ["target"]


def test_what_is_there_is_not_sent_again(source: Path, target: Path) -> None:
    assert sync_folder(HERE, source, target) == TOTAL
    assert sync_folder(HERE, source, target) == 0


def test_a_transfer_that_was_interrupted_goes_on_where_it_stopped(source: Path, target: Path) -> None:
    with pytest.raises(StoppedError):
        sync_folder(HERE, source, target, progress=stop_after(4_000_000))
    assert not target.exists()
    result = sync_folder(HERE, source, target)
    assert TOTAL - 5_100_000 < result <= TOTAL - 4_000_000
    assert contents(target) == contents(source)


@pytest.mark.slow
def test_a_lost_connection_is_an_error_and_the_next_transfer_sends_the_rest(
    sshd: Sshd, source: Path, target: Path
) -> None:
    with Remote("alpha", sshd.config) as remote:

        def cut(host: str, sent: int, total: int) -> None:
            if sent > 3_000_000:
                subprocess.run(
                    ["ssh", "-O", "exit", "-S", remote._socket, "x"], capture_output=True, check=False
                )

        with pytest.raises(RemoteError) as caught:
            sync_folder(remote, source, target, progress=cut)
        assert caught.value.reason == "connection lost"
        result = sync_folder(remote, source, target)
    assert result < TOTAL
    assert contents(target) == contents(source)


def test_a_part_that_was_damaged_meanwhile_is_sent_anew(source: Path, target: Path) -> None:
    with pytest.raises(StoppedError):
        sync_folder(HERE, source, target, progress=stop_after(4_000_000))
    (part,) = target.parent.rglob(".*.part")
    flip_a_bit(part, 1_000_000)
    assert sync_folder(HERE, source, target) == TOTAL - SIZES["manifest.json"]
    assert contents(target) == contents(source)


def test_a_flipped_bit_in_a_finished_copy_is_found_and_mended(source: Path, target: Path) -> None:
    sync_folder(HERE, source, target)
    flip_a_bit(target / "x.tokens", 1_234_567)
    assert sync_folder(HERE, source, target) == SIZES["x.tokens"]
    assert contents(target) == contents(source)


def flip_a_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def test_a_second_receiver_of_the_same_folder_waits_for_the_first(source: Path, target: Path) -> None:
    """As on hosts that share the folder among themselves."""
    began = list[int]()
    with ThreadPoolExecutor() as threads:
        with Dialogue(HERE, [sys.executable, "-m", "echelon.launch.receive"]) as first:
            first.send({"target": str(target), "files": []})
            first.answer("what is there already")
            second = threads.submit(
                sync_folder, HERE, source, target, progress=lambda host, sent, total: began.append(sent)
            )
            assert wait([second], timeout=0.6).done == set()
            assert began == []
        assert second.result() == TOTAL


def test_a_file_damaged_on_the_way_is_sent_once_more(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, blocks = Dialogue.write, list[bytes]()

    def damage_one(dialogue: Dialogue, data: bytes) -> None:
        blocks.append(data)
        write(dialogue, b"x" + data[1:] if len(blocks) == 5 else data)

    monkeypatch.setattr(Dialogue, "write", damage_one)
    assert sync_folder(HERE, source, target) == TOTAL + SIZES["train-0.source.tokens"]
    assert contents(target) == contents(source)


def test_what_an_abandoned_transfer_of_other_data_left_does_not_appear(source: Path, target: Path) -> None:
    left = target.with_name(".target.arriving") / "old.tokens"
    left.parent.mkdir(parents=True)
    left.write_text("old")
    sync_folder(HERE, source, target)
    assert contents(target) == contents(source)


def test_a_part_that_was_whole_but_had_no_name_yet_is_not_forgotten(source: Path, target: Path) -> None:
    part = target.with_name(".target.arriving") / ".x.tokens.part"
    part.parent.mkdir(parents=True)
    part.write_bytes((source / "x.tokens").read_bytes())
    assert sync_folder(HERE, source, target) == TOTAL - SIZES["x.tokens"]
    assert contents(target) == contents(source)


def test_a_disk_without_room_is_told_before_anything_is_sent(source: Path, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(6_000_000))
    with pytest.raises(
        RemoteError, match=r"7\.0 MB of data are to go to .*, where 2\.4 MB are free; make room"
    ):
        sync_folder(HERE, source, small_disk / "target")


def test_a_disk_that_fills_up_meanwhile_is_told(source: Path, small_disk: Path) -> None:
    def fill(host: str, sent: int, total: int) -> None:
        with contextlib.suppress(OSError):
            (small_disk / "other").write_bytes(bytes(8_000_000))

    with pytest.raises(RemoteError, match="No space left on device"):
        sync_folder(HERE, source, small_disk / "target", progress=fill)
    (small_disk / "other").unlink()
    assert sync_folder(HERE, source, small_disk / "target") < TOTAL
    assert contents(small_disk / "target") == contents(source)


def test_a_folder_that_cannot_be_written_is_told(source: Path) -> None:
    with pytest.raises(RemoteError, match="failed there: /proc/echelon"):
        sync_folder(HERE, source, Path("/proc/echelon/target"))


def test_only_files_are_copied(source: Path, target: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        sync_folder(HERE, source / "missing", target)
    os.symlink("/etc/passwd", source / "link")
    with pytest.raises(DataError, match="is a link or a device"):
        sync_folder(HERE, source, target)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ""])
def test_no_file_is_taken_outside_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outside the folder"):
        SyncReceiver(tmp_path / "target", [SentFile(name, 1, "")])
