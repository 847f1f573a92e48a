"""A connection between two processes of a fixed group: the agents' wire (wire.py), which also carries the rendezvous.

Messages go both ways, as JSON objects. Nothing here waits unless it says so: process 0 has many connections.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from echelon.agent.wire import (
    INTRODUCTION_BYTES,
    NONCE_BYTES,
    WELCOME_BYTES,
    Handshake,
    MessageDecoder,
    MessageEncoder,
    WireError,
    notice_silence,
)
from echelon.launch.site import Address
from echelon.runfolder import parse_json, to_json

_PATIENCE_S = 5.0
"""How long a message may take to be sent, or a connection to be made."""
HELLO_BYTES, _MESSAGE_BYTES = 4096, 2**20

WireMessage = dict[str, Any]
"""Always with its `kind`."""


class Connection:
    """One end of a connection; any message that is not authentic closes it."""

    def __init__(self, peer: socket.socket) -> None:
        self._socket = peer
        self._bytes = bytearray()
        """Received, of the handshake."""
        self._encoder: MessageEncoder | None = None
        self._decoder: MessageDecoder | None = None
        self.inbox: deque[WireMessage] = deque()
        self.is_closed = False
        notice_silence(peer)
        peer.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: str, **values: Any) -> None:
        """Send one message; a connection that does not take it is closed."""
        assert self._encoder is not None
        if not self.is_closed:
            self._send_bytes(self._encoder.encode(to_json({"kind": kind, **values}).encode()))

    def send_heartbeat(self, message: bytes) -> None:
        self.send("heartbeat", text=message.decode())

    def take_heartbeats(self) -> list[bytes]:
        """Return the heartbeats that have come; other messages stay in the inbox."""
        heartbeats = [message for message in self.inbox if message["kind"] == "heartbeat"]
        for message in heartbeats:
            self.inbox.remove(message)
        return [str(message.get("text")).encode() for message in heartbeats]

    def read(self) -> None:
        """Put messages that have arrived into the inbox."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if self._decoder is None:
            self._bytes += data
        else:
            self._take_in(data)
        if not data:
            self.close()

    def wait(self, timeout_s: float) -> WireMessage | None:
        """Wait for the next message; None if none comes in time, or ever."""
        self.wait_until(lambda: bool(self.inbox), timeout_s)
        return self.inbox.popleft() if self.inbox else None

    def wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> None:
        """Read until `is_so`, the connection is closed, or time is over."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            while not is_so() and not self.is_closed and (left_s := deadline - time.monotonic()) > 0:
                if selector.select(min(left_s, 3600.0)):
                    self.read()

    def take_handshake(self, size: int) -> bytes | None:
        """The next `size` bytes of the handshake; None until they are there."""
        if len(self._bytes) < size:
            return None
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    def begin(self, sends_with: bytes, receives_with: bytes) -> None:
        """From now on there are messages, under these keys."""
        self._encoder, self._decoder = MessageEncoder(sends_with), MessageDecoder(receives_with, HELLO_BYTES)
        self._take_in(bytes(self._bytes))

    def allow_long_messages(self) -> None:
        """The other end has said who it is."""
        assert self._decoder is not None
        self._decoder.limit_bytes = _MESSAGE_BYTES

    def send_handshake(self, data: bytes) -> None:
        self._send_bytes(data)

    def close(self) -> None:
        """End the connection. Its descriptor stays until `release`, as a selector may still hold it."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        self.close()
        self._socket.close()

    def _send_bytes(self, data: bytes) -> None:
        try:
            self._socket.settimeout(_PATIENCE_S)
            self._socket.sendall(data)
            self._socket.setblocking(False)
        except OSError:
            self.close()

    def _take_in(self, data: bytes) -> None:
        assert self._decoder is not None
        self._decoder.feed(data)
        try:
            while (content := self._decoder.decode()) is not None:
                message = parse_json(content)
                if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
                    raise WireError("no message")
                self.inbox.append(message)
        except (WireError, ValueError):
            self.close()


class Answering:
    """Process 0's side of a handshake, which advances as the caller's bytes come."""

    def __init__(self, connection: Connection, secret: bytes) -> None:
        self.since = time.monotonic()
        self._connection, self._secret = connection, secret
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.caller: int | None = None
        """Who calls, once it has proved that it knows the secret."""
        connection.send_handshake(self._nonce)

    def proceed(self) -> None:
        """Read what has arrived; a caller that does not know the secret is cut off."""
        if self.caller is not None:
            return
        introduction = self._connection.take_handshake(INTRODUCTION_BYTES)
        if introduction is None:
            return
        try:
            handshake = Handshake.answer(self._secret, self._nonce, introduction)
        except WireError:
            self._connection.close()
            return
        self._connection.send_handshake(handshake.welcome())
        self._connection.begin(handshake.answer_key, handshake.key)
        self.caller = handshake.caller


def connect(address: Address) -> Connection | None:
    """A connection to `address`; None if no one answers, or no name server knows it yet."""
    try:
        return Connection(socket.create_connection((address.host, address.port), timeout=_PATIENCE_S))
    except (OSError, ValueError, OverflowError):  # a file may name a host or a port that cannot exist
        return None


def introduce(
    connection: Connection, secret: bytes, caller: int, wait: Callable[[Callable[[], bool]], None]
) -> bool:
    """Get to know process 0 at the other end; False if it does not know the secret, or `wait` has given up."""

    def receive(size: int) -> bytes | None:
        taken: list[bytes] = []

        def is_there() -> bool:
            if not taken and (data := connection.take_handshake(size)) is not None:
                taken.append(data)
            return bool(taken)

        wait(is_there)
        return taken[0] if is_there() else None

    nonce = receive(NONCE_BYTES)
    if nonce is None:
        return False
    handshake = Handshake.call(secret, caller, 0, nonce)
    connection.send_handshake(handshake.introduce())
    proof = receive(WELCOME_BYTES)
    if proof is None or not handshake.is_welcome(proof):
        return False
    connection.begin(handshake.key, handshake.answer_key)
    connection.allow_long_messages()
    return True
