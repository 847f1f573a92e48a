"""The loop of an agent, which looks after one host's workers and agrees with the other agents on who trains.

It hears heartbeats and sends its own, ticks a few times a second, and leaves when the run has ended. What a tick does
is decided in decision.py and carried out in execution.py. `service.py` runs it as a process of its own on each host of
`--hosts`; a run on this machine alone, and every process of a site's launcher, run it themselves.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from echelon.agent.actions import Events, ReleaseFolder
from echelon.agent.agent_state import first_state
from echelon.agent.decision import hear, tick
from echelon.agent.ending import find_outcome, have_all_heard
from echelon.agent.execution import HostExecutor
from echelon.agent.outcome import RunOutcome
from echelon.agent.spec import AgentSpec
from echelon.agent.transport import Transport
from echelon.launch.stop_requests import StopRequests

LEAVE_VARIABLE, LEAVE_FILE = "ECHELON_LEAVE_FILE", "/run/echelon/leaving"
"""If this file exists, the machine is about to be taken away; a rented machine that is given notice makes it
(cloud/userdata.py)."""
_TICK_S = 0.2
_LINGER_S = 3.0
"""How long an agent keeps telling the others that the run has ended."""


class Agent:
    """One host's part in a run. `on_end` is called with its outcome before the other hosts hear it."""

    def __init__(
        self,
        spec: AgentSpec,
        executor: HostExecutor,
        network: Transport,
        stops: StopRequests,
        on_end: Callable[[RunOutcome], None] = lambda _: None,
    ) -> None:
        self._spec, self._executor, self._network = spec, executor, network
        self._stops, self._on_end = stops, on_end
        self._state = first_state(spec.host, time.monotonic())
        self._news = asyncio.Event()
        """Something has happened that the next tick should not wait for."""
        self._leave_file = Path(os.environ.get(LEAVE_VARIABLE, LEAVE_FILE))

    @property
    def num_failures(self) -> int:
        """How many generations that this agent led have failed."""
        return len(self._state.failed_at)

    async def run(self, on_tick: Callable[[], None] = lambda: None) -> RunOutcome:
        """Take part until the run has ended. `on_tick` is called often; if it raises, the workers save and leave."""
        loop = asyncio.get_running_loop()
        self._executor.on_workers_end = lambda: loop.call_soon_threadsafe(self._news.set)
        await self._network.open(self._news.set)
        try:
            while (ended := find_outcome(self._state, time.monotonic(), self._spec)) is None:
                await self._tick()
                on_tick()
                await self._wait_for_news()
            await self._leave(ended)
            on_tick()
        except BaseException:
            self._executor.close(must_save=True)
            raise
        finally:
            self._network.close()
        return ended

    async def _tick(self) -> None:
        """In a thread, as the run folder may block. An agent that is stuck there sends no heartbeats."""
        self._network.note_tick()
        before = self._state.mine
        arguments = (self._state, self._take_events(), time.monotonic(), self._spec, self._executor)
        self._state = await asyncio.to_thread(tick, *arguments)
        has_changed = replace(self._state.mine, pulses={}) != replace(before, pulses={})
        self._network.call(self._state.hubs)
        self._network.say(self._state.mine, at_once=has_changed)
        if has_changed:
            self._news.set()

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(_TICK_S):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    def _take_events(self) -> Events:
        return Events(
            heartbeats=self._network.take_heard(),
            absent_since=dict(self._network.absent_since),
            lost=self._network.lost,
            pulses=self._executor.pulses,
            workers_end=self._executor.take_workers_end(),
            stop=self._stops.level,
            is_leaving=self._leave_file.exists(),
        )

    async def _leave(self, ended: RunOutcome) -> None:
        """End what is left of the workers, and make sure that the others hear how the run has ended."""
        await asyncio.to_thread(self._executor.close)
        self._on_end(ended)
        if self._state.mine.leads:
            await asyncio.to_thread(self._executor.carry_out, ReleaseFolder())
        if len(self._spec.hosts) == 1:
            return
        self._network.say(self._state.mine, at_once=True)
        await asyncio.sleep(_TICK_S)
        deadline = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline and not have_all_heard(self._state, ended):
            self._network.note_tick()
            self._state = hear(self._state, self._take_events(), time.monotonic(), self._spec)
            await asyncio.sleep(_TICK_S)
