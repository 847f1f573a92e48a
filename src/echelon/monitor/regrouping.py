"""How a worker that has lost others of its group, and keeps its weights, is put into a new group by its launcher.

Each worker has a line to its launcher: a pair of sockets, one end of which it inherits.

    worker -> launcher    able       if others are lost, it can join a new group
                          waiting    it has left its group, and waits for the new one
    launcher -> worker    abandon    another worker is lost, so the collective under way cannot end
                          join       the environment of a worker of the new group; the first one's comes with a socket,
                                     on which the group's store is to listen

Any launcher sets such an environment for a worker that it starts, so this one joins its second group as its first.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Literal

REGROUP_VARIABLE, STORE_VARIABLE = "ECHELON_REGROUP_FD", "ECHELON_STORE_FD"
Readiness = Literal["no", "able", "waiting"]
_MOST_BYTES = 2**16
_ABLE, _WAITING = b"a", b"w"


class LauncherEnd:
    """The launcher's end of the line to one worker."""

    def __init__(self) -> None:
        self._socket, self.worker_end = socket.socketpair()
        self._socket.setblocking(False)
        self._readiness: Readiness = "no"

    @property
    def readiness(self) -> Readiness:
        """The worker's last message."""
        with contextlib.suppress(OSError):
            while news := self._socket.recv(_MOST_BYTES):
                self._readiness = "waiting" if news.endswith(_WAITING) else "able"
        return self._readiness

    def abandon(self) -> None:
        """Have the worker leave its group."""
        self._send({"do": "abandon"}, None)

    def join(self, environment: Mapping[str, str], listener: socket.socket | None) -> None:
        """Have the worker join the group that these variables describe."""
        self._readiness = "able"  # until it waits again
        self._send({"do": "join", "environment": dict(environment)}, listener)

    def _send(self, message: object, listener: socket.socket | None) -> None:
        # A worker that has died, or does not read, is noticed in other ways.
        with contextlib.suppress(OSError):
            descriptors = [listener.fileno()] if listener else []
            socket.send_fds(self._socket, [json.dumps(message).encode() + b"\n"], descriptors)

    def close(self) -> None:
        self._socket.close()
        self.worker_end.close()


class WorkerEnd:
    """The worker's end, read by a thread: the main one may be inside a collective."""

    def __init__(self, line: socket.socket) -> None:
        self.on_abandon: Callable[[], None] = lambda: None
        """Called in that thread."""
        self._socket = line
        self._groups: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="regrouping", daemon=True).start()

    def say_able(self) -> None:
        self._say(_ABLE)

    def wait_for_group(self) -> bool:
        """Wait for a new group, and take over the environment of a worker of it; False if the launcher is gone."""
        self._say(_WAITING)
        environment = self._groups.get()
        if environment is None:
            return False
        os.environ.pop(STORE_VARIABLE, None)
        os.environ.update(environment)
        return True

    def _say(self, word: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(word)

    def _listen(self) -> None:
        unread, descriptors = b"", list[int]()
        while received := self._receive():
            data, more = received
            descriptors += more
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                self._obey(json.loads(line), descriptors)
        self._socket.close()
        self._groups.put(None)

    def _receive(self) -> tuple[bytes, list[int]] | None:
        """Some bytes and descriptors; None if the launcher is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._socket, _MOST_BYTES, 1)
        except OSError:
            return None
        return (data, descriptors) if data else None

    def _obey(self, message: dict[str, object], descriptors: list[int]) -> None:
        if message["do"] == "abandon":
            self.on_abandon()
            return
        environment = message["environment"]
        assert isinstance(environment, dict)
        if descriptors:
            environment[STORE_VARIABLE] = str(descriptors.pop())
        self._groups.put(environment)


def open_line() -> WorkerEnd | None:
    """This process's line to its launcher; None if the launcher forms no second group."""
    descriptor = os.environ.pop(REGROUP_VARIABLE, None)
    return None if descriptor is None else WorkerEnd(socket.socket(fileno=int(descriptor)))
