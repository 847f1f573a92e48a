"""The agents' network: every agent sends its heartbeat to every other, over a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

from echelon.agent.generation import Heartbeat, dump_heartbeat, parse_heartbeat
from echelon.agent.spec import AgentSpec
from echelon.agent.tls import Tls
from echelon.agent.wire import AbsentError, Membership, Receiver, Sender, WireError, answer, call

_BEAT_S = 0.5
"""How often a heartbeat is sent although nothing has changed."""
_REDIAL_S = 0.5
_STRANGERS = 16
"""Connections that have not shown yet that they know the secret. If more come, the oldest are closed: a member needs
only a moment for what a stranger never gets done."""


class Mesh:
    """One agent's connections to all others; none for a host that is alone."""

    def __init__(self, spec: AgentSpec, listener: socket.socket | None = None) -> None:
        self._spec = spec
        self._listener = listener
        tls = Tls(spec.credentials) if spec.credentials else None
        self._membership = Membership(spec.host, bytes.fromhex(spec.secret), tls)
        self._own = Heartbeat(spec.host)
        self._ticked = time.monotonic()
        self._heard: list[tuple[Heartbeat, float]] = []
        self.absent_since: dict[int, float] = {}
        """Hosts whose machine answers that no agent is there, and since when."""
        self.lost: frozenset[int] = frozenset()
        """None: a connection that has ended is made again."""
        self._strangers: list[asyncio.Task[None]] = []
        self._callers: dict[int, asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None

    async def open(self, _on_news: Callable[[], None]) -> None:
        if self._listener is not None:
            self._server = await asyncio.start_server(self._listen_to, sock=self._listener)
        others = [host for host in range(len(self._spec.hosts)) if host != self._spec.host]
        self._tasks = [asyncio.create_task(self._talk_to(host)) for host in others]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()

    def note_tick(self) -> None:
        """The agent is at work: without this, no heartbeats are sent, which would only say that it is not stuck."""
        self._ticked = time.monotonic()

    def say(self, heartbeat: Heartbeat, *, at_once: bool) -> None:
        """Send this heartbeat from now on."""
        self._own = heartbeat
        if at_once:
            self._changed.set()
            self._changed = asyncio.Event()

    def take_heard(self) -> tuple[tuple[Heartbeat, float], ...]:
        """Return the heartbeats that have come since the last call, each with the time it came."""
        heard, self._heard = tuple(self._heard), []
        return heard

    async def _listen_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear another agent out. Who is not a host of this run is sent away."""
        address = (writer.get_extra_info("peername") or ("",))[0]
        try:
            if address not in {host.address for host in self._spec.hosts}:
                return
            receiver = await self._let_in(reader, writer)
            while True:
                heartbeat = parse_heartbeat(await receiver.receive(), len(self._spec.hosts))
                if self._callers.get(receiver.caller) is writer:
                    self._hear(receiver.caller, heartbeat)
        except (WireError, ValueError):
            pass
        finally:
            writer.close()

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Receiver:
        """A caller that knows the secret. A host's newest connection counts: an older one may hold old heartbeats."""
        task = asyncio.current_task()
        assert task is not None
        self._strangers.append(task)
        if len(self._strangers) > _STRANGERS:
            self._strangers.pop(0).cancel()
        try:
            receiver = await answer(reader, writer, self._membership)
        finally:
            self._strangers = [other for other in self._strangers if other is not task]
        if receiver.caller in self._callers:
            self._callers[receiver.caller].transport.abort()
        self._callers[receiver.caller] = writer
        return receiver

    def _hear(self, caller: int, heartbeat: Heartbeat) -> None:
        if heartbeat.host != caller or caller == self._spec.host:
            raise WireError("a heartbeat in another's name")
        self._heard.append((heartbeat, time.monotonic()))

    async def _talk_to(self, host: int) -> None:
        """Tell another agent what this one knows, for as long as it lives."""
        while True:
            with contextlib.suppress(WireError, OSError, TimeoutError):
                sender = await self._call(host)
                try:
                    while True:
                        if time.monotonic() - self._ticked < self._spec.silence_s / 2:
                            async with asyncio.timeout(self._spec.silence_s):
                                await sender.send(dump_heartbeat(self._own))
                        await self._wait_for_change()
                finally:
                    sender.close()
            await asyncio.sleep(_REDIAL_S)

    async def _call(self, host: int) -> Sender:
        """Connect to another agent, and note whether its machine says that there is none."""
        address = self._spec.hosts[host].address
        try:
            sender = await call(address, self._spec.port, self._membership, host)
        except AbsentError:
            self.absent_since.setdefault(host, time.monotonic())
            raise
        except WireError:
            self.absent_since.pop(host, None)
            raise
        self.absent_since.pop(host, None)
        return sender

    async def _wait_for_change(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEAT_S):
                await self._changed.wait()
        await asyncio.sleep(0)
