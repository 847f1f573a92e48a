"""What carries an agent's heartbeat to the others, and theirs to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection

from echelon.agent.generation import Heartbeat
from echelon.agent.messages import Announcement, Link
from echelon.agent.spec import AgentSpec

_BEATS = 5
"""Per `silence_s`: how often a heartbeat is sent although nothing has changed, and at least once a second."""


class Transport:
    """An agent's links. hub_network.py makes and mends them; those of a fixed group are there already (star.py)."""

    def __init__(self, spec: AgentSpec) -> None:
        self._spec = spec
        self._links: dict[int, Link] = {}
        self._news = Announcement(Heartbeat(spec.host))
        self._ticked_at = time.monotonic()
        self._heard: list[tuple[Heartbeat, float]] = []
        self._beating: asyncio.Task[None] | None = None
        self.absent_since: dict[int, float] = {}
        """Hosts whose machine answers that no agent is there, and since when."""
        self.lost: frozenset[int] = frozenset()
        """Hosts whose only connection has ended."""

    async def open(self, _on_news: Callable[[], None]) -> None:
        self._beating = asyncio.create_task(self._beat())

    def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    def note_tick(self) -> None:
        """Note that the agent's loop is running: no heartbeats are sent for an agent that is stuck."""
        self._ticked_at = time.monotonic()

    def call(self, hubs: Collection[int]) -> None:
        """Have links to these hosts."""

    def say(self, heartbeat: Heartbeat, *, at_once: bool) -> None:
        """Send this heartbeat from now on."""
        self._news = Announcement(heartbeat, self._news)
        if at_once:
            self._tell_all()

    def take_heard(self) -> tuple[tuple[Heartbeat, float], ...]:
        """Return the heartbeats that have come since the last call, each with the time it came."""
        heard, self._heard = tuple(self._heard), []
        return heard

    def _hear(self, heartbeat: Heartbeat) -> None:
        self._heard.append((heartbeat, time.monotonic()))

    def _tell_all(self) -> None:
        for link in list(self._links.values()):
            link.tell(self._news)

    async def _beat(self) -> None:
        while True:
            if time.monotonic() - self._ticked_at < self._spec.silence_s / 2:
                self._tell_all()
            await asyncio.sleep(min(self._spec.silence_s / _BEATS, 1.0))
