"""Commands through the actor of a node; the actor is an object of this process, and Ray only what passes calls on."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echelon.errors import RemoteError
from echelon.launch import ray_actor, ray_remote
from echelon.launch.dialogue import Dialogue
from echelon.launch.ray_actor import LIFELINE_VARIABLE, NodeActor, command_environment
from echelon.launch.ray_remote import RayRemote
from tests.waiting import wait_until

pytest.importorskip("ray", reason="the extra `ray` is not installed")


class Near:
    """An actor handle: `handle.method.remote(...)` calls the method in a thread, as Ray's threaded actors do."""

    def __init__(self, actor: NodeActor) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return NearMethod(getattr(self._actor, name))


class NearMethod:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def remote(self, *arguments: Any) -> Any:
        answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=lambda: answers.put(self._method(*arguments)), daemon=True).start()
        return answers.get


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayRemote]:
    monkeypatch.setattr(ray_remote, "ask", lambda _, method, *arguments, **__: method.remote(*arguments)())
    actor = NodeActor()
    handle = Near(actor)
    yield RayRemote("ray-0", lambda: handle)
    for number in list(actor._commands):
        actor.kill(number)
        while actor.read(number, 1.0)[2] is None:
            pass


def test_a_command_has_its_input_and_output_and_status(remote: RayRemote) -> None:
    done = remote.run(["sh", "-c", "cat; echo two >&2; exit 3"], stdin=b"one", timeout_s=60)
    assert (done.status, done.stdout, done.stderr) == (3, b"one", b"two\n")


def test_a_signal_is_told_as_over_ssh(remote: RayRemote) -> None:
    assert remote.run(["sh", "-c", "kill -9 $$"], timeout_s=60).status == 128 + 9


def test_a_missing_command_and_one_that_takes_too_long_are_errors_with_the_node_s_name(
    remote: RayRemote,
) -> None:
    with pytest.raises(RemoteError, match="ray-0: a command is missing there"):
        remote.run(["no-such-command"], timeout_s=60)
    with pytest.raises(RemoteError, match="ray-0: sleep did not end within") as raised:
        remote.run(["sleep", "1000"], timeout_s=0.1)
    assert raised.value.reason == "timed out"


def test_a_dialogue_is_held_as_over_ssh(remote: RayRemote) -> None:
    echo = "import sys\nfor line in sys.stdin: print('echelon-answer ' + line, end='', flush=True)"
    with Dialogue(remote, [sys.executable, "-c", echo]) as other:
        for number in range(3):
            other.send({"number": number})
            assert other.answer("a number", 60) == {"number": number}


def test_much_output_comes_whole_and_waits_for_its_reader(
    remote: RayRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_actor, "_MOST_BUFFERED", 1000)
    count = 3_000_000
    with remote.start([sys.executable, "-c", f"print('x' * {count})"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert len(process.stdout.read()) == count + 1
    assert process.returncode == 0


def test_a_command_is_killed(remote: RayRemote) -> None:
    with remote.start(["sleep", "1000"], stdout=subprocess.PIPE) as process:
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_a_node_that_is_lost_ends_the_command_here_and_says_why(
    remote: RayRemote, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lose(*_: Any, **__: Any) -> None:
        raise RemoteError("ray-0", "connection lost", "its node does not answer")

    monkeypatch.setattr(ray_remote, "_POLL_S", 0.1)
    with (
        (tmp_path / "said").open("wb") as said,
        remote.start(
            ["sh", "-c", "echo here; exec sleep 60"], stdout=subprocess.PIPE, stderr=said
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        monkeypatch.setattr(ray_remote, "ask", lose)
        assert process.stdout.read() == b""
        assert process.wait(60) == 255
    assert (tmp_path / "said").read_text() == "its node does not answer\n"


def test_what_a_node_starts_has_a_lifeline_and_not_ray_s_number_of_threads() -> None:
    made = command_environment({"OMP_NUM_THREADS": "1", "PATH": "/bin", "HOME": "/root"}, 7)
    assert made == {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}/bin",
        "HOME": "/root",
        LIFELINE_VARIABLE: "7",
    }


def test_the_lifeline_ends_with_the_actor_s_process(tmp_path: Path) -> None:
    """The actor's process is killed; what it has started is in a group of its own, and sees the end of the pipe."""
    child = f"import os; os.setsid(); os.read(int(os.environ['{LIFELINE_VARIABLE}']), 1); open('{tmp_path}/seen', 'w')"
    actor = (
        "import time; from echelon.launch.ray_actor import NodeActor; a = NodeActor(); "
        f"a.open([{sys.executable!r}, '-c', {child!r}]); print('up', flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", actor], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        time.sleep(0.2)
        assert not (tmp_path / "seen").exists()
        process.kill()
    wait_until((tmp_path / "seen").exists)
