"""Messages between agents: whole, authentic and in order, or not at all.

Both ends know the run's secret, which came to them over SSH. A connection begins with a random number from each side
and a proof from each that it knows the secret; every message carries a tag over its number and content under a key
that only this connection has, so nothing can be forged, changed, repeated or left out. A stranger gets no further than
the random number. Messages tell which hosts train and how far they are; they are encrypted if the run was started
with --tls (tls.py), which goes around all of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass, field

from echelon.agent.tls import Tls, is_from

SECRET_BYTES = 32
NONCE_BYTES = 32
_TAG_BYTES = WELCOME_BYTES = 32
_MAX_BYTES = 2**20
_MOST_WAITING_BYTES = 4 * _MAX_BYTES
_READ_BYTES = 2**16
_HELLO = struct.Struct("!HH")
"""Who calls, and whom."""
INTRODUCTION_BYTES = _HELLO.size + NONCE_BYTES + _TAG_BYTES
_LENGTH = struct.Struct("!I")
HANDSHAKE_S = 5.0


@dataclass(frozen=True)
class Membership:
    """Which host of the run an agent is, and what it proves that with."""

    host: int
    secret: bytes = field(repr=False)
    tls: Tls | None = None


class WireError(Exception):
    """The other end is a stranger, or has gone."""


class AbsentError(WireError):
    """The machine answers that nobody listens there."""


class MessageEncoder:
    """Makes messages into what goes over a connection: length, tag, content."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def encode(self, message: bytes) -> bytes:
        assert len(message) <= _MAX_BYTES, "messages are short"
        tag = _tag(self._key, self._number, message)
        self._number += 1
        return _LENGTH.pack(len(message)) + tag + message


class MessageDecoder:
    """Finds messages in what comes over a connection; WireError if somebody has tampered with it."""

    def __init__(self, key: bytes, limit_bytes: int = _MAX_BYTES) -> None:
        self._key = key
        self._number = 0
        self._bytes = bytearray()
        self.limit_bytes = limit_bytes
        """Of a message."""

    def feed(self, data: bytes) -> None:
        self._bytes += data

    @property
    def missing(self) -> int:
        """How many more bytes the next message needs at least."""
        head = _LENGTH.size + _TAG_BYTES
        if len(self._bytes) < head:
            return head - len(self._bytes)
        return head + self._size() - len(self._bytes)

    def decode(self) -> bytes | None:
        """Return the next message; None until all of it is there."""
        if len(self._bytes) >= _LENGTH.size and self._size() > self.limit_bytes:
            raise WireError(f"a message of {self._size()} bytes")
        if self.missing > 0:
            return None
        begin, end = _LENGTH.size + _TAG_BYTES, _LENGTH.size + _TAG_BYTES + self._size()
        tag, message = bytes(self._bytes[_LENGTH.size : begin]), bytes(self._bytes[begin:end])
        del self._bytes[:end]
        if not hmac.compare_digest(tag, _tag(self._key, self._number, message)):
            raise WireError("a message is not authentic")
        self._number += 1
        return message

    def _size(self) -> int:
        (size,) = _LENGTH.unpack_from(self._bytes)
        return int(size)


@dataclass(frozen=True)
class Handshake:
    """How two ends of a connection prove to each other that they know a secret, without sending it.

    The called end begins with a nonce. The caller answers with `hello`, which says who calls whom, a nonce of its own,
    and a proof about all of that; the called end proves in turn.
    """

    secret: bytes = field(repr=False)
    caller: int
    called: int
    called_nonce: bytes
    caller_nonce: bytes

    @classmethod
    def call(cls, secret: bytes, caller: int, called: int, called_nonce: bytes) -> Handshake:
        return cls(secret, caller, called, called_nonce, secrets.token_bytes(NONCE_BYTES))

    @classmethod
    def answer(cls, secret: bytes, called_nonce: bytes, introduction: bytes) -> Handshake:
        """From what a caller has said; WireError unless it knows the secret."""
        caller, called = _HELLO.unpack_from(introduction)
        nonce = introduction[_HELLO.size : _HELLO.size + NONCE_BYTES]
        handshake = cls(secret, caller, called, called_nonce, nonce)
        if not hmac.compare_digest(introduction[_HELLO.size + NONCE_BYTES :], handshake._prove(b"caller")):
            raise WireError("a stranger")
        return handshake

    def introduce(self) -> bytes:
        """What the caller sends."""
        return _HELLO.pack(self.caller, self.called) + self.caller_nonce + self._prove(b"caller")

    def welcome(self) -> bytes:
        """What the called end sends then."""
        return self._prove(b"called")

    def is_welcome(self, proof: bytes) -> bool:
        return hmac.compare_digest(proof, self._prove(b"called"))

    @property
    def key(self) -> bytes:
        """For messages from the caller."""
        return self._prove(b"key")

    @property
    def answer_key(self) -> bytes:
        """For messages to the caller."""
        return self._prove(b"answer key")

    def _prove(self, purpose: bytes) -> bytes:
        content = purpose + _HELLO.pack(self.caller, self.called) + self.called_nonce + self.caller_nonce
        return hmac.digest(self.secret, content, hashlib.sha256)


class Sender:
    """The calling end of a connection: it sends, the other end listens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes) -> None:
        self._reader, self._writer = reader, writer
        self._encoder = MessageEncoder(key)

    def send(self, message: bytes) -> None:
        """Send without waiting; a connection on which too much waits already is ended."""
        self._writer.write(self._encoder.encode(message))
        if self._writer.transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            self._writer.transport.abort()

    async def wait_until_closed(self) -> None:
        """Wait until the other end has gone, or says something, which it never does."""
        with contextlib.suppress(OSError):
            await self._reader.read(1)

    def close(self) -> None:
        self._writer.close()


class Receiver:
    """The called end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, key: bytes, caller: int) -> None:
        self._reader = reader
        self._decoder = MessageDecoder(key)
        self.caller = caller

    async def receive(self) -> bytes:
        """The next message; WireError if the connection has ended or somebody has tampered with it."""
        try:
            while (message := self._decoder.decode()) is None:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise WireError("the connection has ended")
                self._decoder.feed(data)
        except OSError as error:
            raise WireError(f"the connection has ended: {error}") from error
        return message


async def call(address: str, port: int, ours: Membership, called: int) -> Sender:
    """Connect to host `called`; WireError if nobody who belongs to the run answers in time."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(address, port)
            notice_silence(writer.get_extra_info("socket"))
            try:
                nonce = await reader.readexactly(NONCE_BYTES)
                handshake = Handshake.call(ours.secret, ours.host, called, nonce)
                if ours.tls is not None:
                    await ours.tls.call(writer, called)
                writer.write(handshake.introduce())
                if not handshake.is_welcome(await reader.readexactly(WELCOME_BYTES)):
                    raise WireError(f"{address}:{port} does not know the run's secret")
            except BaseException:
                writer.close()
                raise
    except ConnectionRefusedError as error:
        raise AbsentError(f"nobody listens at {address}:{port}") from error
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise WireError(f"{address}:{port} does not answer: {error}") from error
    return Sender(reader, writer, handshake.key)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ours: Membership) -> Receiver:
    """Let a caller in who belongs to the run; WireError for anybody else."""
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            notice_silence(writer.get_extra_info("socket"))
            nonce = secrets.token_bytes(NONCE_BYTES)
            writer.write(nonce)  # before TLS, so that nothing of it comes until we are ready for it
            if ours.tls is not None:
                await ours.tls.answer(writer)
            introduction = await reader.readexactly(INTRODUCTION_BYTES)
            handshake = Handshake.answer(ours.secret, nonce, introduction)
            is_itself = ours.tls is None or is_from(writer, handshake.caller)
            if handshake.called != ours.host or not is_itself:
                raise WireError("a stranger")
            writer.write(handshake.welcome())
            await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise WireError(f"a stranger: {error}") from error
    return Receiver(reader, handshake.key, handshake.caller)


def notice_silence(peer: socket.socket) -> None:
    """Have the kernel close the connection about 15 seconds after the other host has died or was cut off."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    settings = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 5, "TCP_USER_TIMEOUT": 15_000}
    for name, value in settings.items():
        if hasattr(socket, name):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _tag(key: bytes, number: int, message: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + message, hashlib.sha256)
