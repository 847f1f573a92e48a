"""Agents with --tls: only hosts with a certificate of the run get in, and nobody on the way can read what they say."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.agent import tls
from echelon.agent.generation import Heartbeat, dump_heartbeat
from echelon.agent.spec import dump_spec, parse_spec
from echelon.agent.tls import Credentials, Tls
from echelon.agent.wire import SECRET_BYTES, Membership, Sender, WireError, answer, call
from echelon.cluster.authority import make_credentials
from echelon.errors import UserError
from echelon.runfolder import RunFolder
from tests.agent.cluster import Cluster, open_cluster
from tests.agent.test_wire import play

SECRET = secrets.token_bytes(SECRET_BYTES)
APPLICATION_DATA = b"\x17\x03\x03"
"""What TLS's records with messages in them begin with."""
MESSAGE = dump_heartbeat(Heartbeat(1, frozenset({0})))
OF_THE_RUN = make_credentials(3)
OF_ANOTHER_RUN = make_credentials(3)


def member(host: int, credentials: Credentials | None) -> Membership:
    return Membership(host, SECRET, Tls(credentials) if credentials else None)


class Listener:
    """Host 0: hears one caller out."""

    def __init__(self, credentials: Credentials | None) -> None:
        self._membership = member(0, credentials)
        self.messages: list[bytes] = []
        self.is_over = asyncio.Event()

    async def listen_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(WireError):
            receiver = await answer(reader, writer, self._membership)
            while True:
                self.messages.append(await receiver.receive())
        writer.close()
        self.is_over.set()


@contextlib.asynccontextmanager
async def listening(credentials: Credentials | None) -> AsyncIterator[tuple[Listener, int]]:
    listener = Listener(credentials)
    async with await asyncio.start_server(listener.listen_to, "127.0.0.1") as server:
        yield listener, server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def tapped(port: int, heard: bytearray) -> AsyncIterator[int]:
    """Somebody on the way who passes everything on, and reads it."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                heard.extend(data)
                writer.write(data)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, their_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, their_writer), pass_on(theirs, writer))

    async with await asyncio.start_server(connect, "127.0.0.1") as server:
        yield server.sockets[0].getsockname()[1]


async def speak(sender: Sender, *messages: bytes) -> None:
    for message in messages:
        sender.send(message)
    sender.close()


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_nobody_on_the_way_can_read_the_messages(is_encrypted: bool) -> None:
    heard, messages = bytearray(), [MESSAGE, b"", b"readable" * 2**17]
    ours, theirs = OF_THE_RUN[:2] if is_encrypted else (None, None)

    async def scenario() -> None:
        async with listening(ours) as (listener, port), tapped(port, heard) as line:
            await speak(await call("127.0.0.1", line, member(1, theirs), 0), *messages)
            await listener.is_over.wait()
            assert listener.messages == messages

    play(scenario)
    assert len(heard) > 2**20
    assert (MESSAGE in heard, b"readable" in heard) == (not is_encrypted, not is_encrypted)


@pytest.mark.parametrize(
    ("caller", "credentials"),
    [(1, None), (1, OF_ANOTHER_RUN[1]), (1, replace(OF_ANOTHER_RUN[1], authority=OF_THE_RUN[1].authority))],
    ids=["no certificate", "another run's", "another run's, whoever answers"],
)
def test_a_caller_without_a_certificate_of_the_run_is_refused_though_it_knows_the_secret(
    caller: int, credentials: Credentials | None
) -> None:
    async def scenario() -> None:
        async with listening(OF_THE_RUN[0]) as (listener, port):
            with pytest.raises(WireError):
                await speak(await call("127.0.0.1", port, member(caller, credentials), 0), MESSAGE)
            await listener.is_over.wait()
            assert listener.messages == []

    play(scenario)


def test_a_host_cannot_speak_in_another_s_name() -> None:
    """All know the secret; the certificate is each one's own."""

    async def scenario() -> None:
        async with listening(OF_THE_RUN[0]) as (listener, port):
            with pytest.raises(WireError):
                await call("127.0.0.1", port, member(1, OF_THE_RUN[2]), 0)
            await listener.is_over.wait()
            assert listener.messages == []

    play(scenario)


@pytest.mark.parametrize(
    "credentials", [None, OF_ANOTHER_RUN[0], OF_THE_RUN[2]], ids=["none", "another run's", "another host's"]
)
def test_a_caller_tells_nothing_to_one_without_that_host_s_certificate(
    credentials: Credentials | None,
) -> None:
    async def scenario() -> None:
        async with listening(credentials) as (listener, port):
            with pytest.raises(WireError):
                await call("127.0.0.1", port, member(1, OF_THE_RUN[1]), 0)
            await listener.is_over.wait()
            assert listener.messages == []

    play(scenario)


def test_old_protocols_are_refused() -> None:
    async def scenario() -> None:
        async with listening(OF_THE_RUN[0]) as (listener, port):
            context = tls._context(ssl.PROTOCOL_TLS_CLIENT, OF_THE_RUN[1])
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await reader.readexactly(32)
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await writer.start_tls(context, server_hostname=tls.host_identity(0))
            writer.close()
            await listener.is_over.wait()

    play(scenario)


def test_a_key_is_not_shown_and_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "PRIVATE" not in repr(OF_THE_RUN[0])
    Tls(OF_THE_RUN[0])
    assert list(tmp_path.iterdir()) == []
    spec = Cluster([RunFolder(tmp_path)], 2, credentials=OF_THE_RUN[0]).spec
    assert parse_spec(dump_spec(spec)).credentials == OF_THE_RUN[0]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UserError, match="extra tls"):
        make_credentials(2)


# Real agents


@contextlib.contextmanager
def captured(port: int) -> Iterator[bytearray]:
    """What goes over loopback from and to a port, as the kernel sees it."""
    heard, is_over, number = bytearray(), threading.Event(), port.to_bytes(2, "big")
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800)) as card:
        card.bind(("lo", 0))
        card.settimeout(0.1)

        def read() -> None:
            while not is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    packet = card.recv(2**17)
                    header = 4 * (packet[0] & 15)
                    if packet[9] == socket.IPPROTO_TCP and number in (
                        packet[header : header + 2],
                        packet[header + 2 : header + 4],
                    ):
                        heard.extend(packet)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield heard
        finally:
            is_over.set()
            reader.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read what goes over a network card")
def test_agents_finish_a_run_and_say_nothing_in_clear_on_the_wire(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.recipe.write_text("")
    with open_cluster([run], 2, program=(sys.executable, "-c", ""), silence_s=3600.0) as cluster:
        common = cluster.spec
        with captured(common.port) as heard:
            for host, credentials in enumerate(OF_THE_RUN[:2]):
                cluster.spec = replace(common, credentials=credentials)
                cluster.start(host)
            cluster.wait()
        assert cluster.outcomes() == ["finished"] * 2
    assert heard.count(APPLICATION_DATA) > 10, "the capture works"
    assert not any(word in heard for word in (b'"host"', b'"phase"', b"waiting", b"finished"))
