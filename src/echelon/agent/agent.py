"""The process that looks after one host's workers, and agrees with the agents of the other hosts on who trains.

It hears heartbeats and sends its own, ticks a few times a second, and leaves when the run has ended. What a tick does
is decided in decision.py and carried out in execution.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from echelon.agent.actions import Events, ReleaseFolder
from echelon.agent.decision import find_outcome, first_state, have_all_heard, hear, tick
from echelon.agent.execution import HostExecutor
from echelon.agent.generation import Heartbeat, dump_heartbeat, parse_heartbeat
from echelon.agent.outcome import Ended, write_outcome
from echelon.agent.spec import AgentSpec
from echelon.agent.tls import Tls
from echelon.agent.wire import AbsentError, Membership, Receiver, Sender, WireError, answer, call
from echelon.monitor.records import RecordWriter
from echelon.runfolder import RunFolder

LEAVE_VARIABLE, LEAVE_FILE = "ECHELON_LEAVE_FILE", "/run/echelon/leaving"
"""If this file exists, the machine is about to be taken away; a rented machine that is given notice makes it
(cloud/userdata.py)."""
_TICK_S = 0.2
_BEAT_S = 0.5
"""How often a heartbeat is sent although nothing has changed."""
_REDIAL_S = 0.5
_STRANGERS = 16
"""Connections that have not shown yet that they know the secret. If more come, the oldest are closed: a member needs
only a moment for what a stranger never gets done."""
_LINGER_S = 3.0
"""How long an agent keeps telling the others that the run has ended."""


class Agent:
    """One host's part in a run."""

    def __init__(self, spec: AgentSpec, run: RunFolder, lock: int, records: RecordWriter) -> None:
        self._spec = spec
        self._records = records
        tls = Tls(spec.credentials) if spec.credentials else None
        self._membership = Membership(spec.host, bytes.fromhex(spec.secret), tls)
        self._executor = HostExecutor(spec, run, lock, records)
        self._state = first_state(spec.host, time.monotonic())
        self._heartbeats: list[tuple[Heartbeat, float]] = []
        """Heard since the last tick."""
        self._absent: dict[int, float] = {}
        """Hosts whose machine answers that no agent is there, and since when."""
        self._strangers: list[asyncio.Task[None]] = []
        self._callers: dict[int, asyncio.StreamWriter] = {}
        self._changed = asyncio.Event()
        self._ticked = time.monotonic()
        self._stop: Literal[0, 1, 2] = 0
        self._stop_asked: float | None = None
        self._leave_file = Path(os.environ.get(LEAVE_VARIABLE, LEAVE_FILE))

    async def run(self, listener: socket.socket) -> Ended:
        """Take part until the run has ended."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        server = await asyncio.start_server(self._listen_to, sock=listener)
        self._records.write("start", host=self._spec.me.name)
        others = [host for host in range(len(self._spec.hosts)) if host != self._spec.host]
        tasks = [asyncio.create_task(self._talk_to(host)) for host in others]
        try:
            while (ended := find_outcome(self._state, time.monotonic(), self._spec)) is None:
                await self._tick()
                await asyncio.sleep(_TICK_S)
            await self._leave(ended)
        finally:
            for task in tasks:
                task.cancel()
            server.close()
        return ended

    async def _tick(self) -> None:
        """In a thread, as the run folder may block. An agent that is stuck there sends no heartbeats."""
        self._ticked, before = time.monotonic(), self._state.mine
        arguments = (self._state, self._take_events(), self._ticked, self._spec, self._executor)
        self._state = await asyncio.to_thread(tick, *arguments)
        if replace(self._state.mine, pulses={}) != replace(before, pulses={}):
            self._tell_others()

    def _take_events(self) -> Events:
        heartbeats, self._heartbeats = tuple(self._heartbeats), []
        return Events(
            heartbeats=heartbeats,
            absent_since=dict(self._absent),
            pulses=self._executor.pulses,
            workers_end=self._executor.take_workers_end(),
            stop=self._stop,
            is_leaving=self._leave_file.exists(),
        )

    def _tell_others(self) -> None:
        """Send a heartbeat now."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _ask_to_stop(self) -> None:
        """Called for SIGTERM: once to save and leave, again, a while later, to end at once."""
        now = time.monotonic()
        if self._stop_asked is None:
            self._stop_asked, self._stop = now, 1
        elif now - self._stop_asked > 1.0:
            self._stop = 2

    async def _leave(self, ended: Ended) -> None:
        """End what is left of the workers, and make sure that the others hear how the run has ended."""
        await asyncio.to_thread(self._executor.close)
        write_outcome(self._records, ended, self._spec.me.name)
        if self._state.mine.leads:
            await asyncio.to_thread(self._executor.carry_out, ReleaseFolder())
        self._tell_others()
        await asyncio.sleep(_TICK_S)
        deadline = time.monotonic() + _LINGER_S
        while time.monotonic() < deadline and not have_all_heard(self._state, ended):
            self._ticked = time.monotonic()
            self._state = hear(self._state, self._take_events(), self._ticked, self._spec)
            await asyncio.sleep(_TICK_S)

    # What is heard and said

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
        self._heartbeats.append((heartbeat, time.monotonic()))

    async def _talk_to(self, host: int) -> None:
        """Tell another agent what this one knows, for as long as it lives."""
        while True:
            with contextlib.suppress(WireError, OSError, TimeoutError):
                sender = await self._call(host)
                try:
                    while True:
                        # A heartbeat from an agent that is stuck would only say that it is not.
                        if time.monotonic() - self._ticked < self._spec.silence_s / 2:
                            async with asyncio.timeout(self._spec.silence_s):
                                await sender.send(dump_heartbeat(self._state.mine))
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
            self._absent.setdefault(host, time.monotonic())
            raise
        except WireError:
            self._absent.pop(host, None)
            raise
        self._absent.pop(host, None)
        return sender

    async def _wait_for_change(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_BEAT_S):
                await self._changed.wait()
        await asyncio.sleep(0)
