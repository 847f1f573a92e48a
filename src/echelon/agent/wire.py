"""Messages between agents: whole, authentic and in order, or not at all.

Both ends know the run's secret, which came to them over SSH. A connection begins with a random number from each side
and a proof from each that it knows the secret; every message carries a tag over its number and content under a key
that only this connection has, so nothing can be forged, changed, repeated or left out. A stranger gets no further than
the random number. Messages tell which hosts train and how far they are; they are encrypted if the run was started
with --tls (tls.py), which goes around all of this.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass, field

from echelon.agent.tls import Tls, is_from

SECRET_BYTES = 32
_NONCE_BYTES = 32
_TAG_BYTES = 32
_MAX_BYTES = 2**20
_HELLO = struct.Struct("!HH")
"""Who calls, and whom."""
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


class Sender:
    """The calling end of a connection: it sends, the other end listens."""

    def __init__(self, writer: asyncio.StreamWriter, key: bytes) -> None:
        self._writer = writer
        self._key = key
        self._number = 0

    async def send(self, message: bytes) -> None:
        assert len(message) <= _MAX_BYTES, "statements are short"
        tag = _tag(self._key, self._number, message)
        self._number += 1
        self._writer.write(_LENGTH.pack(len(message)) + tag + message)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class Receiver:
    """The called end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, key: bytes, caller: int) -> None:
        self._reader = reader
        self._key = key
        self._number = 0
        self.caller = caller

    async def receive(self) -> bytes:
        """The next message; WireError where the connection has ended or somebody has meddled with it."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if size > _MAX_BYTES:
                raise WireError(f"a message of {size} bytes")
            tag = await self._reader.readexactly(_TAG_BYTES)
            message = await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise WireError(f"the connection has ended: {error}") from error
        if not hmac.compare_digest(tag, _tag(self._key, self._number, message)):
            raise WireError("a message is not authentic")
        self._number += 1
        return message


async def call(address: str, port: int, ours: Membership, called: int) -> Sender:
    """Connect to host `called`; WireError if nobody who belongs to the run answers in time."""
    secret = ours.secret
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                theirs, own = await reader.readexactly(_NONCE_BYTES), secrets.token_bytes(_NONCE_BYTES)
                if ours.tls is not None:
                    await ours.tls.call(writer, called)
                hello = _HELLO.pack(ours.host, called)
                writer.write(hello + own + _prove(secret, b"caller", hello, theirs, own))
                proof = await reader.readexactly(_TAG_BYTES)
                if not hmac.compare_digest(proof, _prove(secret, b"called", hello, theirs, own)):
                    raise WireError(f"{address}:{port} does not know the run's secret")
            except BaseException:
                writer.close()
                raise
    except ConnectionRefusedError as error:
        raise AbsentError(f"nobody listens at {address}:{port}") from error
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise WireError(f"{address}:{port} does not answer: {error}") from error
    return Sender(writer, _prove(secret, b"key", hello, theirs, own))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ours: Membership) -> Receiver:
    """Let a caller in who belongs to the run; WireError for anybody else."""
    secret = ours.secret
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            own = secrets.token_bytes(_NONCE_BYTES)
            writer.write(own)  # before TLS, so that nothing of it comes until we are ready for it
            if ours.tls is not None:
                await ours.tls.answer(writer)
            hello = await reader.readexactly(_HELLO.size)
            theirs = await reader.readexactly(_NONCE_BYTES)
            proof = await reader.readexactly(_TAG_BYTES)
            caller, called = _HELLO.unpack(hello)
            is_right = hmac.compare_digest(proof, _prove(secret, b"caller", hello, own, theirs))
            if not is_right or called != ours.host or (ours.tls is not None and not is_from(writer, caller)):
                raise WireError("a stranger")
            writer.write(_prove(secret, b"called", hello, own, theirs))
            await writer.drain()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise WireError(f"a stranger: {error}") from error
    return Receiver(reader, _prove(secret, b"key", hello, own, theirs), caller)


def _prove(secret: bytes, purpose: bytes, hello: bytes, called_nonce: bytes, caller_nonce: bytes) -> bytes:
    return hmac.digest(secret, purpose + hello + called_nonce + caller_nonce, hashlib.sha256)


def _tag(key: bytes, number: int, message: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + message, hashlib.sha256)
