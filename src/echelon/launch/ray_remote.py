"""Commands on nodes of a Ray cluster: the same interface as over SSH (ssh.py), with an actor in the place of sshd.

So whatever is done with hosts, from the first check to `stop`, is done with Ray's nodes by the same code.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Self

from echelon.errors import RemoteError
from echelon.extras import require_extra
from echelon.launch.ssh import Completed, Remote, Stream, explain_failure

_ANSWER_S = 60.0
"""How long an actor may take to answer, beyond what it was asked to wait for."""
_POLL_S = 5.0
_BLOCK_BYTES = 1 << 20

FindActor = Callable[[], Any]
"""The actor that stands for a node now; RemoteError if there is none."""


class RayRemote(Remote):
    """One node. `find_actor` is asked before every command: another node may have taken its place."""

    def __init__(self, host: str, find_actor: FindActor) -> None:
        super().__init__(host)
        self._find_actor = find_actor

    def run(self, command: Sequence[str], *, stdin: bytes | None = None, timeout_s: float) -> Completed:
        actor = self._find_actor()
        done = ask(self.host, actor.run, list(command), stdin, timeout_s, timeout_s=timeout_s + _ANSWER_S)
        if done is None:
            raise RemoteError(
                self.host, "timed out", f"{command[0]} did not end within {timeout_s:g} seconds"
            )
        status, stdout, stderr = done
        error = explain_failure(self.host, self.by_hand, status, stderr.decode(errors="replace"))
        if error and error.reason == "command not found":
            raise error
        return Completed(status if status >= 0 else 128 - status, stdout, stderr)

    def start(
        self,
        command: Sequence[str],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.DEVNULL,
        stderr: Stream = subprocess.DEVNULL,
    ) -> RayProcess:
        actor = self._find_actor()
        return RayProcess(self.host, actor, command, stdin=stdin, stdout=stdout, stderr=stderr)

    def connect(self) -> None:
        self._find_actor()

    def forward(self, port: int, there: int) -> None:
        raise RemoteError(
            self.host, "failed", "Ray does not forward ports", "train into a folder that this machine shares"
        )

    @property
    def by_hand(self) -> str:
        return "ray status"


class RayProcess:
    """A command on a node, as `subprocess.Popen` shows one here."""

    def __init__(
        self,
        host: str,
        actor: Any,
        command: Sequence[str],
        *,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
    ) -> None:
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None
        self._host, self._actor = host, actor
        self._number: int = ask(host, actor.open, list(command))
        self._has_ended = threading.Event()
        if stdin == subprocess.PIPE:
            source, self.stdin = _open_pipe()
            threading.Thread(target=self._send, args=(source,), daemon=True).start()
        else:
            assert stdin == subprocess.DEVNULL, "nothing else is needed"
            self._tell(actor.end_input)
        if stdout == subprocess.PIPE:
            self.stdout, output = _open_pipe()
        else:
            output = _copy_of(stdout)
        sinks = (output, _copy_of(stderr))
        threading.Thread(target=self._receive, args=sinks, daemon=True).start()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended.wait(timeout):
            raise subprocess.TimeoutExpired("a command on a node of Ray", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if not self._has_ended.is_set():
            self._tell(self._actor.kill)

    def _send(self, source: IO[bytes]) -> None:
        with source, contextlib.suppress(RemoteError):
            while block := os.read(source.fileno(), _BLOCK_BYTES):
                if not ask(self._host, self._actor.write, self._number, block):
                    return  # which breaks the writer's pipe, as a command's does that reads no more
            ask(self._host, self._actor.end_input, self._number)

    def _receive(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        status = None
        with contextlib.suppress(OSError), stdout, stderr:
            try:
                while status is None:
                    out, err, status = ask(self._host, self._actor.read, self._number, _POLL_S)
                    for sink, data in ((stdout, out), (stderr, err)):
                        _write_now(sink, data)
            except RemoteError as error:
                with contextlib.suppress(OSError):
                    stderr.write(f"{error.message}\n".encode())
            except OSError:  # nobody reads it any more
                self._tell(self._actor.kill)
        self.returncode = _LOST if status is None else status
        self._has_ended.set()

    def _tell(self, method: Any) -> None:
        """Have something done without waiting for it."""
        errors = require_extra("ray.exceptions", "ray")
        with contextlib.suppress(errors.RayError):  # the actor may have ended, and the command with it
            method.remote(self._number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._has_ended.wait(_ANSWER_S)


_LOST = 255
"""The status of a command whose node was lost, as ssh gives it."""


def _open_pipe() -> tuple[IO[bytes], IO[bytes]]:
    """The end to read and the end to write; whoever holds them closes them."""
    reading, writing = os.pipe()
    return os.fdopen(reading, "rb"), os.fdopen(writing, "wb")


def _copy_of(target: Stream) -> IO[bytes]:
    """Where output goes that is kept in a file, or thrown away."""
    if isinstance(target, int):
        assert target == subprocess.DEVNULL, "nothing else is needed"
        return os.fdopen(os.open(os.devnull, os.O_WRONLY), "wb")
    return os.fdopen(os.dup(target.fileno()), "wb")


def _write_now(sink: IO[bytes], data: bytes) -> None:
    if data:
        sink.write(data)
        sink.flush()


def ask(host: str, method: Any, *arguments: Any, timeout_s: float = _ANSWER_S) -> Any:
    """What an actor's method returns; RemoteError if its node is lost, or does not answer in time."""
    ray = require_extra("ray", "ray")
    with as_remote_error(host):
        return ray.get(method.remote(*arguments), timeout=timeout_s)


@contextlib.contextmanager
def as_remote_error(host: str) -> Iterator[None]:
    """Turn Ray's errors about an actor into RemoteError."""
    errors = require_extra("ray.exceptions", "ray")
    try:
        yield
    except errors.GetTimeoutError:
        raise RemoteError(host, "timed out", "its actor does not answer", "look at `ray status`") from None
    except errors.ActorDiedError as error:
        raise RemoteError(host, "connection lost", explain_death(str(error))) from None
    except errors.RayActorError:
        raise RemoteError(host, "connection lost", "its node does not answer") from None
    except errors.RayError as error:
        said = str(error).strip().splitlines()
        raise RemoteError(host, "failed", f"Ray says: {said[-1] if said else type(error).__name__}") from None


def explain_death(said: str) -> str:
    """Why an actor has ended, in a line, from what Ray says at length."""
    if "No module named 'echelon" in said:
        return "Echelon is not installed for the Python of its Ray"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    causes = [line for line in lines if "node" in line.lower() or "killed" in line.lower()]
    return f"its actor has ended ({(causes or lines or ['no reason given'])[-1]})"
