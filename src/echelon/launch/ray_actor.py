"""What runs on a node of a Ray cluster: an actor that starts commands there, for launch/ray_remote.py.

Ray is the way to the node, and holds its cores and GPUs. The agent and its workers are processes of their own: workers
leave by os._exit, and a GPU's memory is free again when its process has ended. The actor holds a pipe open that the
agent watches (agent/service.py), so nothing trains on unseen if Ray ends the actor or the node's raylet dies.

Agents import this file too, so it does not import ray.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LIFELINE_VARIABLE = "ECHELON_LIFELINE"
"""The descriptor of a pipe that ends when whoever started this process has ended."""
NODE_PYTHON = "python3"
"""The Python of the node's Ray, which comes first in PATH (`command_environment`)."""
_BLOCK_BYTES = 1 << 20
_MOST_BUFFERED = 4 << 20
"""A command whose output nobody reads waits, as it would at the end of a pipe."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node says about itself."""

    hostname: str
    wants_token: bool
    """Whether its Ray was started with token authentication."""


class _NodeCommand:
    """A command under way, and its output that has not been fetched yet."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._output: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._changed = threading.Condition()
        self._num_open = 2
        assert process.stdout is not None
        assert process.stderr is not None
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            threading.Thread(target=self._take, args=(name, stream), daemon=True).start()

    def read(self, wait_s: float) -> tuple[bytes, bytes, int | None]:
        """New output, waited for, and the exit status once all has been read."""
        with self._changed:
            self._changed.wait_for(lambda: any(self._output.values()) or not self._num_open, wait_s)
            stdout, stderr = (bytes(self._output[name]) for name in ("stdout", "stderr"))
            for buffer in self._output.values():
                buffer.clear()
            self._changed.notify_all()
            has_ended = not self._num_open
        # Whoever ended may have left children behind that hold its output; then this waits for them, as ssh does.
        return stdout, stderr, self.process.wait() if has_ended else None

    def _take(self, name: str, stream: IO[bytes]) -> None:
        with stream:
            while block := os.read(stream.fileno(), _BLOCK_BYTES):
                with self._changed:
                    self._output[name] += block
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: len(self._output[name]) < _MOST_BUFFERED)
        with self._changed:
            self._num_open -= 1
            self._changed.notify_all()


class NodeActor:
    """One node's end of `RayRemote`. Threads call it side by side."""

    def __init__(self) -> None:
        # Nobody writes: the pipe ends with this process, and so does what watches it.
        self._lifeline, self._until_the_end = os.pipe()
        self._commands: dict[int, _NodeCommand] = {}
        self._lock = threading.Lock()
        self._count = 0

    def describe(self) -> NodeFacts:
        return NodeFacts(socket.gethostname(), os.environ.get("RAY_AUTH_MODE") == "token")

    def stay(self) -> None:
        """Never return: the call fails when the actor or its node is lost."""
        threading.Event().wait()

    def run(
        self, command: Sequence[str], stdin: bytes | None, timeout_s: float
    ) -> tuple[int, bytes, bytes] | None:
        """Run a command to its end: its status and output; None if it takes longer than `timeout_s`."""
        with self._start(command) as process:
            try:
                stdout, stderr = process.communicate(stdin or b"", timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                return None
        return process.returncode, stdout, stderr

    def open(self, command: Sequence[str]) -> int:
        """Start a command and return its number here."""
        process = self._start(command)
        with self._lock:
            self._count += 1
            self._commands[self._count] = _NodeCommand(process)
            return self._count

    def write(self, number: int, data: bytes) -> bool:
        """Write to a command's input; False if it takes no more."""
        stdin = self._commands[number].process.stdin
        assert stdin is not None
        try:
            stdin.write(data)
            stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def end_input(self, number: int) -> None:
        stdin = self._commands[number].process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()

    def read(self, number: int, wait_s: float) -> tuple[bytes, bytes, int | None]:
        """As `_NodeCommand.read`. A command that has ended is then forgotten."""
        found = self._commands[number].read(wait_s)
        if found[2] is not None:
            self.end_input(number)
            del self._commands[number]
        return found

    def kill(self, number: int) -> None:
        """End a command at once."""
        command = self._commands.get(number)
        if command is not None:
            command.process.kill()

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["sh", "-c", 'exec "$@"', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path.home(),
            env=command_environment(os.environ, self._lifeline),
            pass_fds=[self._lifeline],
        )


def command_environment(environ: Mapping[str, str], lifeline: int) -> dict[str, str]:
    """The environment of a command on a node: Ray's own number of threads is for what runs inside of an actor."""
    kept = {name: value for name, value in environ.items() if name != "OMP_NUM_THREADS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', os.defpath)}"
    return {**kept, "PATH": path, LIFELINE_VARIABLE: str(lifeline)}
