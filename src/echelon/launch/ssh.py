"""Commands on other hosts, through the system's OpenSSH and the user's own configuration of it.

Ports, jump hosts, agents and keys are what `~/.ssh/config` says; host keys are checked as it says. All commands to a
host share one connection. `localhost` and `local` are this machine, without ssh, behind the same interface.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import IO, Self, TypeVar

from echelon.errors import HostsError, Reason, RemoteError

CONFIG_VARIABLE = "ECHELON_SSH_CONFIG"
LOCAL_NAMES = ("localhost", "local")
Stream = int | IO[bytes]
Item = TypeVar("Item")
Value = TypeVar("Value")

_OPTIONS = {
    "BatchMode": "yes",  # nobody is there to type a password
    "ConnectTimeout": "10",
    "ServerAliveInterval": "2",  # with the next: a host that is cut off is noticed within ten seconds
    "ServerAliveCountMax": "4",
    "ControlMaster": "auto",
    "ControlPersist": "60",  # if we are killed, the connection ends a minute after its last command
    "ClearAllForwardings": "yes",  # the user's own forwardings are for the user's own sessions
    "RemoteCommand": "none",
    "RequestTTY": "no",
    "PermitLocalCommand": "no",
    "LogLevel": "ERROR",
}
_CONNECT_S = 30.0
_SSH_FAILED = 255
_NOT_FOUND = 127
_SOCKET_PATH_BYTES = 80
"""The system allows about 104, of which ssh needs 17 for a name of its own while it connects."""


@dataclass(frozen=True)
class Completed:
    """A command that has ended. A status of 128 + N means that signal N ended it."""

    status: int
    stdout: bytes
    stderr: bytes


class Remote:
    """One host and the connection to it; threads may share it. Commands run in the user's home folder there."""

    def __init__(self, host: str, config: Path | None = None) -> None:
        self.host = host
        self.is_local = host in LOCAL_NAMES
        self._config = ["-F", str(config)] if config else []
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def run(self, command: Sequence[str], *, stdin: bytes | None = None, timeout_s: float) -> Completed:
        """Run a command to its end; RemoteError if that is impossible, or takes longer than `timeout_s`.

        What a command has begun on another host continues there after the timeout: only its input and output end.
        """
        source = subprocess.DEVNULL if stdin is None else subprocess.PIPE
        with self.start(command, stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                stdout, stderr = process.communicate(stdin, timeout_s)
            except subprocess.TimeoutExpired:
                raise RemoteError(
                    self.host, "timed out", f"{command[0]} did not end within {timeout_s:g} seconds"
                ) from None
            finally:
                if process.poll() is None:
                    _kill_group(process)
        status = process.returncode
        error = explain_failure(self.host, self.by_hand, status, stderr.decode(errors="replace"))
        if error and not (self.is_local and status == _SSH_FAILED):
            raise error
        return Completed(status if status >= 0 else 128 - status, stdout, stderr)

    def start(
        self,
        command: Sequence[str],
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = subprocess.DEVNULL,
        stderr: Stream = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        """Start a command and return the process here that stands for it; RemoteError if there is no connection.

        What it writes never reaches the terminal by itself: hosts may write anything.

        The process leads a group of its own, so that Ctrl-C reaches the caller alone. Ending it ends the command's
        input and output, not the command. `explain_failure` tells what its exit status means.
        """
        self.connect()
        return self._open(command, stdin=stdin, stdout=stdout, stderr=stderr)

    def connect(self) -> None:
        """Connect if need be; RemoteError that says why it is impossible."""
        with self._lock:
            if self.is_local or self._socket.exists():
                return
            process = self._open(
                ["true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            with process:
                try:
                    stderr = process.communicate(timeout=_CONNECT_S)[1].decode(errors="replace")
                except subprocess.TimeoutExpired:
                    _kill_group(process)
                    stderr = "Connection timed out"
            status = process.returncode
            error = explain_failure(self.host, self.by_hand, status if status >= 0 else _SSH_FAILED, stderr)
            if error:
                raise error

    def forward(self, port: int, there: int) -> None:
        """Let this machine's loopback port lead to a loopback port of the host, for as long as the connection lasts."""
        self.connect()
        options = [
            f"-oControlPath={self._socket}",
            "-O",
            "forward",
            "-L",
            f"127.0.0.1:{port}:127.0.0.1:{there}",
        ]
        done = subprocess.run(
            ["ssh", *self._config, *options, "--", self.host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CONNECT_S,
            check=False,
        )
        if done.returncode != 0:
            said = _last_line(done.stderr.decode(errors="replace"))
            raise RemoteError(self.host, "failed", f"port {port} could not be forwarded: {said}")

    def close(self) -> None:
        """End the shared connection, if there is one."""
        if self._folder is None:
            return
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [*self._client(), "-O", "exit", "--", self.host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=5,
                check=False,
            )
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    @property
    def by_hand(self) -> str:
        """What a user would type to get there."""
        return shlex.join(["ssh", *self._config, self.host])

    def _open(
        self, command: Sequence[str], *, stdin: Stream, stdout: Stream, stderr: Stream
    ) -> subprocess.Popen[bytes]:
        arguments = (
            render_local(command)
            if self.is_local
            else [*self._client(), "--", self.host, render_remote(command)]
        )
        try:
            return subprocess.Popen(
                arguments,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=_home() if self.is_local else None,
                start_new_session=True,
            )
        except FileNotFoundError:
            raise RemoteError(
                self.host, "ssh", "there is no `ssh` on this machine", "install the OpenSSH client"
            ) from None

    def _client(self) -> list[str]:
        options = [
            f"-o{name}={value}" for name, value in (_OPTIONS | {"ControlPath": str(self._socket)}).items()
        ]
        return ["ssh", *self._config, *options]

    @property
    def _socket(self) -> Path:
        if self._folder is None:
            self._folder = _make_private_folder()
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / "s"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def side_by_side(items: Iterable[Item], action: Callable[[Item], Value]) -> list[Value]:
    """Run `action` on all items at once, each in a thread of its own; results in order.

    If some fail, the first of their errors is raised once all are done. Ctrl-C is raised at once: nobody waits for the
    threads then, not even the interpreter at its end.
    """
    futures: list[Future[Value]] = []
    for item in items:
        future = Future[Value]()
        Thread(target=_settle, args=(future, action, item), daemon=True).start()
        futures.append(future)
    wait(futures)
    return [future.result() for future in futures]


def _settle(future: Future[Value], action: Callable[[Item], Value], item: Item) -> None:
    try:
        future.set_result(action(item))
    except BaseException as error:  # for whoever waits for the result
        future.set_exception(error)


def on_all(remotes: Sequence[Remote], action: Callable[[Remote], Value]) -> dict[str, Value | RemoteError]:
    """Run `action` on all hosts at once; each host's result, or what went wrong there."""

    def attempt(remote: Remote) -> Value | RemoteError:
        try:
            return action(remote)
        except RemoteError as error:
            return error

    return dict(zip([remote.host for remote in remotes], side_by_side(remotes, attempt), strict=True))


def raise_problems(answers: Mapping[str, object]) -> None:
    """Raise HostsError with the problems of all hosts, if an answer of `on_all` is one."""
    problems = sorted(str(answer) for answer in answers.values() if isinstance(answer, RemoteError))
    if problems:
        raise HostsError("\n".join(problems))


def find_config(given: Path | None) -> Path | None:
    """The ssh configuration to use in place of the user's: `given`, or $ECHELON_SSH_CONFIG; None for the user's."""
    named = os.environ.get(CONFIG_VARIABLE)
    config = given or (Path(named) if named else None)
    if config is None:
        return None
    if not config.is_file():
        raise HostsError(f"{config}: there is no such ssh configuration (--ssh-config, {CONFIG_VARIABLE})")
    return config.absolute()


def render_remote(command: Sequence[str]) -> str:
    """What ssh hands to the user's login shell, any that quotes as sh does, to run exactly `command`.

    The `sh` around it stays, so that a signal gives 128 + N and 255 means that ssh itself failed.
    """
    script = f"{shlex.join(command)}; status=$?; [ $status -ne {_SSH_FAILED} ] || status=254; exit $status"
    return f"exec sh -c {shlex.quote(script)}"


def render_local(command: Sequence[str]) -> list[str]:
    """The same on this machine; the command takes the place of the `sh`, so that a signal to it reaches it."""
    return ["sh", "-c", 'exec "$@"', "sh", *command]


def explain_failure(host: str, by_hand: str, status: int, stderr: str) -> RemoteError | None:
    """What kept a command from running, from its exit status and what was said; None if it did run."""
    if status == _NOT_FOUND and re.search("not found|No such file", stderr):
        return RemoteError(
            host,
            "command not found",
            f"a command is missing there: {_last_line(stderr)}",
            "install it on that host",
        )
    if status != _SSH_FAILED:
        return None
    said, address = _last_line(stderr), host.rpartition("@")[2]
    for pattern, reason, message, remedy in _CAUSES:
        if re.search(pattern, stderr):
            offered = re.search("ssh-keygen .*-R .*", stderr)
            forget = offered[0].strip() if offered else f"ssh-keygen -R {shlex.quote(address)}"
            values = {"said": said, "ssh": by_hand, "host": host, "forget": forget}
            return RemoteError(host, reason, message.format(**values), remedy.format(**values))
    return RemoteError(
        host, "connection lost", f"the connection was lost ({said})", f"try `{by_hand}` by hand"
    )


_CAUSES: tuple[tuple[str, Reason, str, str], ...] = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "host key",
        "the host key is not the one known here: another machine answers, or it was set up anew",
        "if you know that it was, remove the old key with `{forget}`, then run `{ssh}` once by hand",
    ),
    (
        "Host key verification failed|No .* host key is known",
        "host key",
        "the host key is not known here",
        "run `{ssh}` once by hand and compare the fingerprint",
    ),
    (
        "Could not resolve hostname|Name or service not known",
        "unknown host",
        "there is no host of this name",
        "check the name, or add it to ~/.ssh/config",
    ),
    (
        "Permission denied|Too many authentication failures",
        "permission",
        "the host does not let you in ({said})",
        "a key without a password prompt is needed: `ssh-copy-id {host}`, or `ssh-add` for a key with a passphrase",
    ),
    (
        "Connection refused",
        "refused",
        "nothing listens on its ssh port",
        "start sshd there, or name the right port in ~/.ssh/config",
    ),
    (
        "No route to host|Network is unreachable|proxy dialer did not pass back",
        "unreachable",
        "the host cannot be reached over the network",
        "check that the host is up and on the same network, VPN or jump host",
    ),
    (
        "timed out|Timeout",
        "timed out",
        "the host does not answer",
        "check that it is up and that no firewall drops ssh",
    ),
    (
        "Bad configuration|Can't open user config|Bad owner or permissions|terminating, .* bad configuration",
        "ssh",
        "the ssh configuration cannot be used: {said}",
        "correct it",
    ),
)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _make_private_folder() -> Path:
    """A folder that only this user can enter, with a path short enough for a socket in it."""
    is_short = len(tempfile.gettempdir()) + len("/echelon-12345678/s") < _SOCKET_PATH_BYTES
    return Path(tempfile.mkdtemp(prefix="echelon-", dir=None if is_short else "/tmp"))


def _home() -> str:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
