"""The network of agents on hosts: connections to hubs, and to every agent that has called this one.

A connection carries heartbeats from its caller to the called end, so two agents that talk have one each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Collection

from echelon.agent.messages import HeartbeatReader, Link
from echelon.agent.spec import AgentSpec
from echelon.agent.tls import Tls
from echelon.agent.topology import NUM_HUBS
from echelon.agent.transport import Transport
from echelon.agent.wire import AbsentError, Membership, Receiver, Sender, WireError, answer, call
from echelon.launch.interfaces import is_loopback

_REDIAL_S = 0.5
_STRANGERS = 16
"""Connections, beyond two for each host, that have not shown yet that they know the secret. If more come, the oldest
are closed: a member proves itself in a moment, a stranger never."""
_BACKLOG = 1024
"""Connections that may wait to be accepted: all hosts call a new hub at the same moment."""


class HubNetwork(Transport):
    """One agent's connections; none for a host that is alone."""

    def __init__(self, spec: AgentSpec, listener: socket.socket | None = None) -> None:
        super().__init__(spec)
        self._listener = listener
        tls = Tls(spec.credentials) if spec.credentials else None
        self._membership = Membership(spec.host, bytes.fromhex(spec.secret), tls)
        self._addresses = frozenset(host.address for host in spec.hosts)
        self._most_strangers = 2 * len(spec.hosts) + _STRANGERS
        self._strangers: list[asyncio.Task[None]] = []
        self._callers: dict[int, asyncio.StreamWriter] = {}
        self._hubs: frozenset[int] = frozenset()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    async def open(self, on_news: Callable[[], None]) -> None:
        await super().open(on_news)
        if self._listener is not None:
            self._server = await asyncio.start_server(self._listen_to, sock=self._listener, backlog=_BACKLOG)

    def close(self) -> None:
        super().close()
        for task in self._calls.values():
            task.cancel()
        if self._server is not None:
            self._server.close()

    def call(self, hubs: Collection[int]) -> None:
        self._hubs = frozenset(hubs) - {self._spec.host}
        wanted = self._hubs.union(self._callers)
        for host in self._calls.keys() - wanted:
            self._calls.pop(host).cancel()
            self.absent_since.pop(host, None)
        for host in wanted - self._calls.keys():
            self._calls[host] = asyncio.create_task(self._talk_to(host))

    async def _listen_to(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive from another agent; refuse one that is not a host of this run."""
        address = (writer.get_extra_info("peername") or ("",))[0]
        receiver: Receiver | None = None
        try:
            if address not in self._addresses:
                return
            receiver = await self._let_in(reader, writer)
            heartbeats = HeartbeatReader(len(self._spec.hosts))
            while True:
                heartbeat = heartbeats.read(await receiver.receive())
                if heartbeat.host != receiver.caller or receiver.caller == self._spec.host:
                    raise WireError("a heartbeat in another's name")
                if self._callers.get(receiver.caller) is writer:
                    self._hear(heartbeat)
        except (WireError, ValueError):
            pass
        finally:
            writer.close()
            if receiver is not None and self._callers.get(receiver.caller) is writer:
                del self._callers[receiver.caller]

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Receiver:
        """A caller that knows the secret. A host's newest connection counts: an older one may hold old heartbeats."""
        task = asyncio.current_task()
        assert task is not None
        self._strangers.append(task)
        if len(self._strangers) > self._most_strangers:
            self._strangers.pop(0).cancel()
        try:
            receiver = await answer(reader, writer, self._membership)
        finally:
            self._strangers = [other for other in self._strangers if other is not task]
        if receiver.caller in self._callers:
            self._callers[receiver.caller].transport.abort()
        self._callers[receiver.caller] = writer
        return receiver

    async def _talk_to(self, host: int) -> None:
        """Keep a connection that sends this agent's heartbeats to another."""
        while True:
            with contextlib.suppress(WireError):
                sender = await self._call(host)
                link = self._links[host] = Link(host, sender.send)
                try:
                    link.tell(self._news)
                    await sender.wait_until_closed()
                finally:
                    del self._links[host]
                    sender.close()
            # However many hosts are missing, they are tried at the same rate.
            num_missing = len(self._hubs - self._links.keys())
            await asyncio.sleep(_REDIAL_S * max(1.0, num_missing / NUM_HUBS))

    async def _call(self, host: int) -> Sender:
        """Connect to another agent, and note whether its machine says that there is none."""
        address, own = self._spec.hosts[host].address, self._spec.me.address
        # Loopback has many addresses, and the kernel would send from its first one, by which nobody knows us.
        source = own if is_loopback(own) else None
        try:
            sender = await call(address, self._spec.port, self._membership, host, source=source)
        except AbsentError:
            self.absent_since.setdefault(host, time.monotonic())
            raise
        except WireError:
            self.absent_since.pop(host, None)
            raise
        self.absent_since.pop(host, None)
        return sender
