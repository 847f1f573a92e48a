"""The line between a launcher and a worker that is put into another group."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from echelon.monitor.regrouping import REGROUP_VARIABLE, STORE_VARIABLE, LauncherEnd, WorkerEnd, open_line
from tests.waiting import wait_until


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LauncherEnd, WorkerEnd]]:
    """Both ends of a line, in one process."""
    launcher = LauncherEnd()
    monkeypatch.setenv(REGROUP_VARIABLE, str(os.dup(launcher.worker_end.fileno())))
    launcher.worker_end.close()
    worker = open_line()
    assert worker is not None
    yield launcher, worker
    launcher.close()
    while worker.wait_for_group():  # until the thread has seen the end
        pass


def said(launcher: LauncherEnd) -> str:
    return launcher.readiness


def test_a_worker_without_a_line_has_none() -> None:
    assert open_line() is None


def test_a_launcher_knows_what_its_worker_has_said_last(ends: tuple[LauncherEnd, WorkerEnd]) -> None:
    launcher, worker = ends
    assert said(launcher) == "no"
    worker.say_able()
    assert said(launcher) == "able"
    waiting = threading.Thread(target=worker.wait_for_group)
    waiting.start()
    wait_until(lambda: said(launcher) == "waiting")
    launcher.join({}, None)
    waiting.join()
    assert said(launcher) == "able", "it can be put into a third group"


def test_a_worker_takes_over_its_new_place_and_the_socket_of_the_store(
    ends: tuple[LauncherEnd, WorkerEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, worker = ends
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv(STORE_VARIABLE, "an older one")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        launcher.join({"RANK": "0"}, listener)
        assert worker.wait_for_group()
        assert os.environ["RANK"] == "0"
        with socket.socket(fileno=int(os.environ[STORE_VARIABLE])) as received:
            assert received.getsockname() == listener.getsockname()
    launcher.join({"RANK": "1"}, None)
    assert worker.wait_for_group()
    assert STORE_VARIABLE not in os.environ, "another worker has the store"


def test_a_worker_in_a_collective_hears_that_it_is_to_leave(ends: tuple[LauncherEnd, WorkerEnd]) -> None:
    launcher, worker = ends
    heard = threading.Event()
    worker.on_abandon = heard.set
    launcher.abandon()
    assert heard.wait(60)


def test_a_worker_does_not_wait_for_a_launcher_that_is_gone(ends: tuple[LauncherEnd, WorkerEnd]) -> None:
    launcher, worker = ends
    launcher.close()
    assert not worker.wait_for_group()
    worker._groups.put(None)  # what the fixture waits for
