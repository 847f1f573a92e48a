"""Who gets in and what is believed: the wire alone, then a real agent among strangers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echelon.agent import wire
from echelon.agent.agent import Agent
from echelon.agent.execution import HostExecutor
from echelon.agent.generation import Generation, Heartbeat
from echelon.agent.hub_network import HubNetwork
from echelon.agent.messages import Announcement, HeartbeatReader
from echelon.agent.tls import Credentials, Tls
from echelon.agent.wire import Membership, Receiver, Sender, WireError, answer, call
from echelon.cluster.authority import make_credentials
from echelon.launch.local import listen
from echelon.launch.stop_requests import StopRequests
from echelon.runfolder import RunFolder
from tests.agent.cluster import Cluster

SECRET = secrets.token_bytes(wire.SECRET_BYTES)
CALLER, CALLED = 1, 0
OURS, THEIRS = Membership(CALLED, SECRET), Membership(CALLER, SECRET)
FRAME_BYTES = 4 + 32
"""Length and tag, before the message."""


@pytest.fixture
def short_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_S", 0.3)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run a scenario, and let what it has closed end before the loop does."""

    async def run() -> None:
        await scenario()
        await asyncio.sleep(0.05)

    asyncio.run(run())


@contextlib.asynccontextmanager
async def speaking(port: int) -> AsyncIterator[Sender]:
    sender = await call("127.0.0.1", port, THEIRS, CALLED)
    try:
        yield sender
    finally:
        sender.close()


class Called:
    """The called end: hears one caller out, and keeps what it said and why it was sent away."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.error: WireError | None = None
        self.is_over = asyncio.Event()

    async def listen_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            receiver = await answer(reader, writer, OURS)
            while True:
                self.messages.append(await receiver.receive())
        except WireError as error:
            self.error = error
        finally:
            writer.close()
            self.is_over.set()


@contextlib.asynccontextmanager
async def called() -> AsyncIterator[tuple[Called, int]]:
    end = Called()
    server = await asyncio.start_server(end.listen_to, "127.0.0.1")
    async with server:
        yield end, server.sockets[0].getsockname()[1]


Meddle = Callable[[list[bytes]], list[bytes]]
"""What somebody on the way makes of the frames that a caller sends after its handshake."""


@contextlib.asynccontextmanager
async def meddler(port: int, meddle: Meddle, frames: int) -> AsyncIterator[int]:
    """A line to `port` that passes the handshake on as it is, waits for so many frames and passes on others."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(await their_reader.readexactly(32))
        their_writer.write(await reader.readexactly(4 + 32 + 32))
        writer.write(await their_reader.readexactly(32))
        sent = []
        for _ in range(frames):
            head = await reader.readexactly(FRAME_BYTES)
            sent.append(head + await reader.readexactly(int.from_bytes(head[:4], "big")))
        their_writer.write(b"".join(meddle(sent)))
        their_writer.close()
        writer.close()

    server = await asyncio.start_server(pass_on, "127.0.0.1")
    async with server:
        yield server.sockets[0].getsockname()[1]


def test_messages_come_whole_and_in_order_from_who_knows_the_secret() -> None:
    async def scenario() -> None:
        async with called() as (end, port):
            messages = [b"one", b"", b"x" * 2**20]
            async with speaking(port) as sender:
                for message in messages:
                    sender.send(message)
            await end.is_over.wait()
            assert end.messages == messages

    play(scenario)


@pytest.mark.parametrize(
    ("secret", "addressee"), [(b"x" * 32, CALLED), (SECRET, 2)], ids=["wrong secret", "wrong addressee"]
)
def test_who_does_not_know_the_secret_or_means_another_host_is_sent_away(
    secret: bytes, addressee: int
) -> None:
    async def scenario() -> None:
        async with called() as (end, port):
            with pytest.raises(WireError):
                await call("127.0.0.1", port, Membership(CALLER, secret), addressee)
            await end.is_over.wait()
            assert "stranger" in str(end.error)

    play(scenario)


def test_a_caller_tells_nothing_to_a_listener_that_does_not_know_the_secret() -> None:
    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(os.urandom(32))
        heard.append(await reader.read(2**16))
        writer.write(os.urandom(32))
        heard.append(await reader.read())
        writer.close()

    heard: list[bytes] = []

    async def scenario() -> None:
        server = await asyncio.start_server(pretend, "127.0.0.1")
        async with server:
            with pytest.raises(WireError, match="does not know"):
                await call("127.0.0.1", server.sockets[0].getsockname()[1], THEIRS, CALLED)
            while len(heard) < 2:
                await asyncio.sleep(0.01)

    play(scenario)
    assert [len(part) for part in heard] == [4 + 32 + 32, 0]
    assert SECRET not in heard[0]


@pytest.mark.parametrize(
    ("meddle", "believed"),
    [
        (lambda f: f, 3),
        (lambda f: [f[0], f[1][:-1] + bytes([f[1][-1] ^ 1]), f[2]], 1),
        (lambda f: [f[0], f[1][:10] + bytes([f[1][10] ^ 1]) + f[1][11:], f[2]], 1),
        (lambda f: [f[0], f[0], f[1]], 1),
        (lambda f: [f[0], f[2], f[1]], 1),
        (lambda f: [f[0], f[2]], 1),
        (lambda f: [f[0], f[1][:-1]], 1),
        (lambda f: [f[0], (2**20 + 1).to_bytes(4, "big") + f[1][4:]], 1),
        (lambda f: [f[0], os.urandom(5000)], 1),
    ],
    ids=["untouched", "changed", "forged", "repeated", "reordered", "dropped", "cut", "oversized", "garbage"],
)
def test_what_was_changed_on_the_way_is_not_believed(meddle: Meddle, believed: int) -> None:
    messages = [b"one", b"two", b"three"]

    async def scenario() -> None:
        async with called() as (end, port), meddler(port, meddle, len(messages)) as line:
            async with speaking(line) as sender:
                for message in messages:
                    sender.send(message)
            await end.is_over.wait()
            assert end.messages == messages[:believed]
            assert end.error is not None

    play(scenario)


def test_a_recorded_connection_cannot_be_played_again() -> None:
    async def scenario() -> None:
        recorded: list[bytes] = []

        def record(frames: list[bytes]) -> list[bytes]:
            recorded.extend(frames)
            return frames

        async with called() as (end, port), meddler(port, record, 1) as line:
            async with speaking(line) as sender:
                sender.send(b"one")
            await end.is_over.wait()
        async with called() as (end, port), meddler(port, lambda _: recorded, 1) as line:
            async with speaking(line) as sender:
                sender.send(b"one")
            await end.is_over.wait()
            assert end.messages == []

    play(scenario)


@pytest.mark.usefixtures("short_handshake")
@pytest.mark.parametrize("garbage", [b"", b"\0", b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100], ids=repr)
def test_a_caller_that_sends_nothing_or_garbage_is_sent_away(garbage: bytes) -> None:
    async def scenario() -> None:
        async with called() as (end, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(garbage)
            await end.is_over.wait()
            assert end.error is not None
            writer.close()

    play(scenario)


@pytest.mark.usefixtures("short_handshake")
def test_a_listener_that_says_nothing_does_not_hold_a_caller_up() -> None:
    async def scenario() -> None:
        with listen("127.0.0.1") as silent, pytest.raises(WireError, match="does not answer"):
            await call("127.0.0.1", silent.getsockname()[1], THEIRS, CALLED)

    play(scenario)


# A real agent: host 0 of three. The test is host 1, and whoever else.


class Neighbour:
    """Host 1 of an agent's run: hears what the agent says, and speaks to it."""

    def __init__(self, spec: Any, credentials: Credentials | None) -> None:
        self._spec = spec
        tls = Tls(credentials) if credentials else None
        self._membership = Membership(1, bytes.fromhex(spec.secret), tls)
        self.heard: Heartbeat | None = None

    async def listen_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(WireError):
            receiver: Receiver = await answer(reader, writer, self._membership)
            heartbeats = HeartbeatReader(3)
            while True:
                self.heard = heartbeats.read(await receiver.receive())
        writer.close()

    async def call(self, **changes: Any) -> Sender:
        me = self._spec.hosts[0]
        return await call(me.address, self._spec.port, replace(self._membership, **changes), 0)

    async def speak_until_seen(self, sender: Sender) -> None:
        """Say something again and again, as agents do, until the agent says that it hears this host."""
        while self.heard is None or 1 not in self.heard.sees:
            sender.send(message_of(Heartbeat(1)))
            await asyncio.sleep(0.02)


Scenario = Callable[[Neighbour, Agent], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def among(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario beside an agent that never has enough hosts to begin."""
    run = RunFolder(tmp_path / "run")
    run.create()
    own, theirs = make_credentials(2) if request.param else (None, None)
    spec = replace(Cluster([run, run, run], 3, fewest=3, silence_s=1.0).spec, run=str(run.path), host=0)
    spec = replace(spec, credentials=own)

    async def play_beside(scenario: Scenario) -> None:
        mesh, neighbour = HubNetwork(spec, listen("127.0.0.1", spec.port)), Neighbour(spec, theirs)
        agent = Agent(spec, HostExecutor(spec, run, 0, lambda _: None), mesh, StopRequests())
        hearing = await asyncio.start_server(neighbour.listen_to, sock=listen("127.0.0.2", spec.port))
        task = asyncio.create_task(agent.run())
        try:
            while neighbour.heard is None:
                await asyncio.sleep(0.02)
            await scenario(neighbour, agent)
            assert not task.done(), "the agent lives"
        finally:
            task.cancel()
            hearing.close()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    return lambda scenario: play(lambda: play_beside(scenario))


def test_an_agent_hears_a_member_and_notices_when_it_falls_silent(
    among: Callable[[Scenario], None],
) -> None:
    async def scenario(neighbour: Neighbour, _agent: Agent) -> None:
        sender = await neighbour.call()
        await neighbour.speak_until_seen(sender)
        while neighbour.heard is None or 1 in neighbour.heard.sees:
            await asyncio.sleep(0.02)
        sender.close()

    among(scenario)


@pytest.mark.parametrize("changes", [{"tls": Tls(make_credentials(2)[1])}, {"secret": b"x" * 32}], ids=list)
def test_an_agent_hears_nobody_with_another_run_s_certificate_or_secret(
    among: Callable[[Scenario], None], changes: dict[str, Any]
) -> None:
    async def scenario(neighbour: Neighbour, agent: Agent) -> None:
        with pytest.raises(WireError):
            await neighbour.call(**changes)
        assert not agent._state.peers

    among(scenario)


def test_more_strangers_than_allowed_do_not_keep_a_member_out(
    among: Callable[[Scenario], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "HANDSHAKE_S", 3600.0)  # no stranger goes by itself

    async def scenario(neighbour: Neighbour, _agent: Agent) -> None:
        port = neighbour._spec.port  # from a member's address, as another user of its machine could
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        sender = await neighbour.call()
        await neighbour.speak_until_seen(sender)
        for _, writer in held:
            writer.close()
        sender.close()

    among(scenario)


def test_a_caller_from_elsewhere_is_not_even_greeted(among: Callable[[Scenario], None]) -> None:
    async def scenario(neighbour: Neighbour, _agent: Agent) -> None:
        port = neighbour._spec.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.9", 0))
        assert await reader.read() == b""
        writer.close()

    among(scenario)


def message_of(heartbeat: Heartbeat) -> bytes:
    return Announcement(heartbeat).whole


def generation(**changes: Any) -> Generation:
    return replace(Generation(7, 1, (0, 1)), **changes)


NONSENSE = {
    "another's name": message_of(Heartbeat(2)),
    "the agent's own name": message_of(Heartbeat(0)),
    "a host that is none": message_of(Heartbeat(99)),
    "sees nobody's host": message_of(Heartbeat(1, sees=frozenset({0, 77}))),
    "members that are none": message_of(Heartbeat(1, frozenset({0}), generation(members=(0, 1, 99)))),
    "a negative member": message_of(Heartbeat(1, frozenset({0}), generation(members=(-1, 0, 1)))),
    "members twice": message_of(Heartbeat(1, frozenset({0}), generation(members=(0, 1, 1)))),
    "a leader outside": message_of(Heartbeat(1, frozenset({0}), generation(leader=1, members=(0, 2)))),
    "no port": message_of(Heartbeat(1, frozenset({0}), generation(store_port=70_000))),
    "no number": message_of(Heartbeat(1, frozenset({0}), generation(number=-3))),
    "no phase": message_of(Heartbeat(1, phase="ready")).replace(b'"ready"', b'"dancing"'),
    "a list": b"H[1, 2, 3]",
    "null": b"Hnull",
    "half": b'H{"host": 1, "generation"',
    "deep": b"H" + b"[" * 100_000,
    "not a number": message_of(Heartbeat(1, stop=1)).replace(b'"stop":1', b'"stop":NaN'),
    "not text": b"H\xff\xfe\x00",
    "empty": b"H",
    "a repetition of nothing": b"",
    "pulses of nobody": b"P{}",
    "no kind of message": b"X{}",
}


def test_nonsense_from_a_member_is_refused_without_harm(among: Callable[[Scenario], None]) -> None:
    async def scenario(neighbour: Neighbour, _agent: Agent) -> None:
        for what, nonsense in NONSENSE.items():
            sender = await neighbour.call()
            print(what)  # the last of them is the one that was not refused
            sender.send(nonsense)
            await sender.wait_until_closed()
            sender.close()
        await asyncio.sleep(0.5)
        assert neighbour.heard is not None
        assert neighbour.heard.generation is None
        assert neighbour.heard.sees == frozenset()
        sender = await neighbour.call()
        await neighbour.speak_until_seen(sender)
        sender.close()

    among(scenario)


def test_of_two_connections_of_a_member_the_newer_counts(among: Callable[[Scenario], None]) -> None:
    """The older may still deliver what was said before a cut."""

    async def scenario(neighbour: Neighbour, _agent: Agent) -> None:
        older = await neighbour.call()
        await asyncio.sleep(0.1)
        newer = await neighbour.call()
        older.send(message_of(Heartbeat(1)))
        await asyncio.sleep(1.0)
        assert neighbour.heard is not None
        assert 1 not in neighbour.heard.sees
        await neighbour.speak_until_seen(newer)
        newer.close()
        older.close()

    among(scenario)
