"""A connection between two launchers: JSON objects, a line each."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections import deque
from typing import Any

from echelon.launch.site import Address
from echelon.runfolder import parse_json, to_json

_PATIENCE_S = 5.0
"""How long a line may take to be sent, or a connection to be made."""
_MESSAGE_BYTES = 2**20

Message = dict[str, Any]
"""Always with its `kind`."""


class Link:
    """A connection that carries JSON objects, a line each; whatever else comes closes it."""

    def __init__(self, connection: socket.socket, limit_bytes: int = _MESSAGE_BYTES) -> None:
        self._connection = connection
        self._bytes = bytearray()
        self.limit_bytes = limit_bytes
        self.inbox: deque[Message] = deque()
        self.is_closed = False
        _notice_silence(connection)
        connection.setblocking(False)

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, kind: str, **values: Any) -> None:
        """Send one message; a connection that does not take it is closed."""
        line = to_json({"kind": kind, **values}) + "\n"
        try:
            self._connection.settimeout(_PATIENCE_S)
            self._connection.sendall(line.encode())
            self._connection.setblocking(False)
        except OSError:
            self.close()

    def read(self) -> None:
        """Put what has come into the inbox, without waiting."""
        try:
            data = self._connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self._bytes = (self._bytes + data).split(b"\n")
        messages = [_parse(bytes(line)) for line in lines]
        self.inbox += [message for message in messages if message is not None]
        if not data or None in messages or len(self._bytes) > self.limit_bytes:
            self.close()

    def wait(self, timeout_s: float) -> Message | None:
        """The next message; None where none comes in time, or ever."""
        self.await_message(timeout_s)
        return self.inbox.popleft() if self.inbox else None

    def await_message(self, timeout_s: float) -> None:
        """Return when a message is in the inbox, the connection is closed, or time is over."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while not self.inbox and not self.is_closed and (left_s := deadline - time.monotonic()) > 0:
                if selector.select(min(left_s, 3600.0)):
                    self.read()

    def close(self) -> None:
        """End the connection. Its descriptor stays until `release`, as a selector may still hold it."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        self.close()
        self._connection.close()


def call(address: Address) -> Link | None:
    """A connection to `address`; None where nobody answers, or no name server knows it yet."""
    try:
        return Link(socket.create_connection((address.host, address.port), timeout=_PATIENCE_S))
    except (OSError, ValueError, OverflowError):  # a note may name a host or a port that there cannot be
        return None


def _notice_silence(connection: socket.socket) -> None:
    """Have the kernel close the connection about 15 seconds after the other host has died or was cut off."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    settings = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 15_000}
    for name, value in settings.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _parse(line: bytes) -> Message | None:
    try:
        message = parse_json(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and isinstance(message.get("kind"), str) else None
