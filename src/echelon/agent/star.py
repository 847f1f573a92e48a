"""The network of a fixed group: process 0 has a connection to each of the others, made by the rendezvous.

A process that dies closes its connection, so it is known to be lost at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

from echelon.agent.connection import Connection
from echelon.agent.generation import Heartbeat, dump_heartbeat, parse_heartbeat
from echelon.agent.spec import AgentSpec

_BEAT_S = 0.5
"""How often a heartbeat is sent although nothing has changed."""


class Star:
    """One process's connections: those of process 0 to all others, or that of another to process 0."""

    def __init__(self, spec: AgentSpec, connections: Mapping[int, Connection]) -> None:
        self._spec, self._connections = spec, connections
        self._own = Heartbeat(spec.host)
        self._ticked = time.monotonic()
        self._heard: list[tuple[Heartbeat, float]] = []
        self._on_news: Callable[[], None] = lambda: None
        self._beating: asyncio.Task[None] | None = None
        self.absent_since: Mapping[int, float] = {}
        self.lost: frozenset[int] = frozenset()

    async def open(self, on_news: Callable[[], None]) -> None:
        self._on_news = on_news
        loop = asyncio.get_running_loop()
        for host, connection in self._connections.items():
            loop.add_reader(connection, self._read, host, connection)
            self._take_in(host, connection)  # what came with the rendezvous' last message
        self._beating = asyncio.create_task(self._beat())

    def close(self) -> None:
        """Stop listening. The connections stay: the others are to see when this process has left."""
        if self._beating is not None:
            self._beating.cancel()
        loop = asyncio.get_running_loop()
        for connection in self._connections.values():
            loop.remove_reader(connection)

    def note_tick(self) -> None:
        self._ticked = time.monotonic()

    def say(self, heartbeat: Heartbeat, *, at_once: bool) -> None:
        self._own = heartbeat
        if at_once:
            self._send()

    def take_heard(self) -> tuple[tuple[Heartbeat, float], ...]:
        heard, self._heard = tuple(self._heard), []
        return heard

    def _read(self, host: int, connection: Connection) -> None:
        connection.read()
        self._take_in(host, connection)

    def _take_in(self, host: int, connection: Connection) -> None:
        for message in [message for message in connection.inbox if message["kind"] == "heartbeat"]:
            connection.inbox.remove(message)
            with contextlib.suppress(ValueError):
                heartbeat = parse_heartbeat(str(message.get("text")).encode(), len(self._spec.hosts))
                if heartbeat.host == host:
                    self._heard.append((heartbeat, time.monotonic()))
        if connection.is_closed and host not in self.lost:
            asyncio.get_running_loop().remove_reader(connection)
            self.lost |= {host}
        self._on_news()

    def _send(self) -> None:
        text = dump_heartbeat(self._own).decode()
        for connection in self._connections.values():
            if not connection.is_closed:
                connection.send("heartbeat", text=text)

    async def _beat(self) -> None:
        while True:
            if time.monotonic() - self._ticked < self._spec.silence_s / 2:
                self._send()
            await asyncio.sleep(_BEAT_S)
