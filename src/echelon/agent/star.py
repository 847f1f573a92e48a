"""The network of a fixed group: process 0 has a connection to each of the others, made by the rendezvous.

A process that dies closes its connection, so it is known to be lost at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from echelon.agent.connection import Connection
from echelon.agent.messages import HeartbeatReader, Link
from echelon.agent.spec import AgentSpec
from echelon.agent.transport import Transport


class Star(Transport):
    """One process's connections: those of process 0 to all others, or that of another to process 0."""

    def __init__(self, spec: AgentSpec, connections: Mapping[int, Connection]) -> None:
        super().__init__(spec)
        self._connections = connections
        self._readers = {host: HeartbeatReader(len(spec.hosts)) for host in connections}
        self._links = {host: Link(host, connections[host].send_heartbeat) for host in connections}
        self._on_news: Callable[[], None] = lambda: None

    async def open(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        loop = asyncio.get_running_loop()
        for host, connection in self._connections.items():
            loop.add_reader(connection, self._read, host, connection)
            self._take_in(host, connection)  # what came with the rendezvous' last message
        await super().open(on_news)

    def close(self) -> None:
        """Stop listening. The connections stay: the others are to see when this process has left."""
        super().close()
        loop = asyncio.get_running_loop()
        for connection in self._connections.values():
            loop.remove_reader(connection)

    def _read(self, host: int, connection: Connection) -> None:
        connection.read()
        self._take_in(host, connection)

    def _take_in(self, host: int, connection: Connection) -> None:
        for message in connection.take_heartbeats():
            with contextlib.suppress(ValueError):
                heartbeat = self._readers[host].read(message)
                if heartbeat.host == host:
                    self._hear(heartbeat)
        if connection.is_closed and host not in self.lost:
            asyncio.get_running_loop().remove_reader(connection)
            self.lost |= {host}
        self._on_news()
