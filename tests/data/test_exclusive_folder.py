from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from echelon.data.exclusive_folder import exclusive, publish, remove_abandoned


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def hold(folder: Path, ready: Connection, finish: Connection) -> None:
    with exclusive(folder) as partial:
        (partial / "file").write_text("first")
        ready.send("holding")
        finish.recv()
        publish(partial, folder)


def start_holder(folder: Path) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ready, ready_end = context.Pipe(duplex=False)
    finish_end, finish = context.Pipe(duplex=False)
    process = context.Process(target=hold, args=(folder, ready_end, finish_end))
    process.start()
    assert ready.recv() == "holding"
    return process, finish


def test_published_folder_is_all_that_is_left(tmp_path: Path) -> None:
    with exclusive(tmp_path / "x") as partial:
        (partial / "file").write_text("made")
        assert not (tmp_path / "x").exists()
        publish(partial, tmp_path / "x")
    assert names(tmp_path) == ["x"]
    assert names(tmp_path / "x") == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_failure_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        (partial / "file").write_text("half")
        raise error

    with pytest.raises(error), exclusive(tmp_path / "x") as partial:
        fail(partial)
    assert names(tmp_path) == []


def test_second_process_waits_for_the_first_and_finds_its_result(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    process, finish = start_holder(folder)
    remove_abandoned(tmp_path)
    assert names(tmp_path) == ["x.lock", "x.partial"]
    threading.Timer(0.3, finish.send, ["now"]).start()
    with exclusive(folder):
        assert (folder / "file").read_text() == "first"
        assert names(tmp_path) == ["x", "x.lock", "x.partial"], "the lock held must be the one others see"
    process.join()
    assert names(tmp_path) == ["x"]


def test_who_has_to_wait_is_told_once(tmp_path: Path) -> None:
    told: list[str] = []
    with exclusive(tmp_path / "x", lambda: told.append("free")):
        pass
    process, finish = start_holder(tmp_path / "x")

    def let_go() -> None:
        told.append("held")
        finish.send("now")

    with exclusive(tmp_path / "x", let_go):
        assert told == ["held"]
    process.join()


def test_what_a_killed_process_left_is_removed_by_the_next_claim_of_anything(tmp_path: Path) -> None:
    process, _ = start_holder(tmp_path / "x")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert names(tmp_path) == ["x.lock", "x.partial"]
    with exclusive(tmp_path / "y"):
        assert names(tmp_path) == ["y.lock", "y.partial"]
    assert names(tmp_path) == []
