"""What leading a large cluster costs: the real leader among simulated members, all on loopback.

The leader is an agent in a process of its own, with its decisions, its lease on a run folder, its wire and a worker
that does nothing. The members, all in another process, have the real network and pretend to follow. Prints the leader's
share of a core, its bytes per second with all headers, and how long it takes to notice a member that falls silent.
Exit status 1 if it is more than MOST_CORES or MOST_MBIT_S.
Usage:
    python bench/bench_agents.py [--members 1000] [--seconds 30] [--tls]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import resource
import secrets
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from echelon.agent.actions import RecordEvent
from echelon.agent.agent import Agent
from echelon.agent.execution import HostExecutor
from echelon.agent.generation import GenerationStage, Heartbeat, HostPhase
from echelon.agent.hub_network import HubNetwork
from echelon.agent.spec import AgentSpec, HostSpec
from echelon.cluster.authority import make_credentials
from echelon.launch.local import listen
from echelon.launch.stop_requests import StopRequests
from echelon.runfolder import RunFolder

MOST_CORES, MOST_MBIT_S = 0.25, 10.0
SILENCE_S = 5.0
WORKERS = 8
"""Of each member, whose pulses the leader is told."""
TICK_S, TICKS_PER_STEP = 0.2, 5
PHASES: dict[GenerationStage, HostPhase] = {
    "forming": "ready",
    "running": "running",
    "draining": "interrupted",
    "ended": "interrupted",
}
LOSSES = 5
SETTLE_S = 5.0
FRAME_BYTES = 66
"""Ethernet, IP and TCP headers of a packet."""


@dataclass(frozen=True)
class Usage:
    """What the leader has used since it began."""

    at: float
    cpu_s: float
    bytes_in: int
    bytes_out: int


def count_bytes() -> tuple[int, int]:
    """Return what this process's connections have received and sent, headers and acknowledgements included."""
    received = sent = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as peer:
            if peer.type == socket.SOCK_STREAM and peer.family == socket.AF_INET:
                info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                acked, got, segments_out, segments_in = struct.unpack_from("=QQII", info, 120)
                received += got + segments_in * FRAME_BYTES
                sent += acked + segments_out * FRAME_BYTES
    return received, sent


# The leader


def lead(spec: AgentSpec, pipe: Connection) -> None:
    """Run the agent of host 0; what it tells goes to the parent, which may ask for its usage."""
    allow_many_files()
    run, stops = RunFolder(Path(spec.run)), StopRequests()

    def tell(news: RecordEvent) -> None:
        pipe.send((time.monotonic(), news.message))

    def answer() -> None:
        while pipe.poll():
            if pipe.recv() == "usage":
                pipe.send(Usage(time.monotonic(), time.process_time(), *count_bytes()))
            else:
                stops.insist()

    async def look_after() -> None:
        network = HubNetwork(spec, listen(spec.me.address, spec.port))
        await Agent(spec, HostExecutor(spec, run, None, tell), network, stops).run(answer)

    asyncio.run(look_after())


# The members


class Member:
    """A host that does as the leader says, and whose workers make progress."""

    def __init__(self, spec: AgentSpec) -> None:
        self.name = spec.me.name
        self.heartbeat = Heartbeat(spec.host)
        self.network = HubNetwork(spec, listen(spec.me.address, spec.port))
        self.is_silent = False
        self._ticks = 0

    async def begin(self) -> None:
        await self.network.open(lambda: None)
        self.network.call({0})

    def tick(self) -> None:
        self.network.note_tick()
        self._ticks += 1
        if self._ticks % TICKS_PER_STEP == 0:
            self.network.say(self._make_progress(), at_once=False)
        for leader, _ in self.network.take_heard():
            if self._follow(leader):
                self.network.say(self.heartbeat, at_once=True)

    def _follow(self, leader: Heartbeat) -> bool:
        """Take in what the leader says; return whether that changes what this member says."""
        before, generation = self.heartbeat, leader.generation
        if generation is None or before.host not in generation.members:
            self.heartbeat = replace(before, sees=frozenset({0}))
        elif generation is not before.generation or before.phase == "ready":
            is_new = before.generation is None or before.generation.order != generation.order
            phase = PHASES["forming" if is_new else generation.stage]
            self.heartbeat = replace(
                before, sees=frozenset({0}), generation=generation, phase=phase, is_led=True
            )
        return self.heartbeat != before

    def _make_progress(self) -> Heartbeat:
        first = self.heartbeat.host * WORKERS
        pulse = (10 * self._ticks, 10 * self._ticks, self._ticks, 0.125, False)
        return replace(self.heartbeat, pulses={first + n: pulse for n in range(WORKERS)})


async def let_live(members: list[Member]) -> None:
    for member in members:
        await member.begin()
    while True:
        for member in members:
            if not member.is_silent:
                member.tick()
        await asyncio.sleep(TICK_S)


def is_training(members: list[Member]) -> bool:
    return all(member.is_silent or member.heartbeat.phase == "running" for member in members)


async def wait_until(is_so: Callable[[], bool]) -> float:
    """Return how long it took."""
    began = time.monotonic()
    while not is_so():
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def measure(specs: list[AgentSpec], pipe: Connection, seconds: float) -> bool:
    said: asyncio.Queue[object] = asyncio.Queue()
    # Read at once, or the leader would wait with its next words.
    asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: said.put_nowait(pipe.recv()))
    members = [Member(spec) for spec in specs]
    living = asyncio.create_task(let_live(members))
    began = time.monotonic()
    started_s = await wait_until(lambda: is_training(members))
    print(f"{len(members)} members train after {started_s:.1f} s")
    await asyncio.sleep(SETTLE_S)
    before = await ask(pipe, said)
    await asyncio.sleep(seconds)
    after = await ask(pipe, said)
    elapsed_s = after.at - before.at
    cores = (after.cpu_s - before.cpu_s) / elapsed_s
    mbit_in, mbit_out = (
        8e-6 * (getattr(after, way) - getattr(before, way)) / elapsed_s for way in ("bytes_in", "bytes_out")
    )
    print(f"the leader: {cores:.1%} of a core, {mbit_in:.2f} Mbit/s in, {mbit_out:.2f} Mbit/s out")
    noticed = [await lose(member, members, said) for member in members[-LOSSES:]]
    print(f"silent members were noticed after {', '.join(f'{s:.1f}' for s in noticed)} s")
    # Python 3.11 reports every connection that is open when the loop ends.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    living.cancel()
    print(f"the members: {time.process_time() / (time.monotonic() - began):.0%} of a core")
    return cores <= MOST_CORES and mbit_in + mbit_out <= MOST_MBIT_S


async def ask(pipe: Connection, said: asyncio.Queue[object]) -> Usage:
    pipe.send("usage")
    while not isinstance(answer := await said.get(), Usage):
        pass
    return answer


async def lose(member: Member, members: list[Member], said: asyncio.Queue[object]) -> float:
    """Silence a member; return how long the leader took to notice, once the others train again."""
    member.is_silent, since = True, time.monotonic()
    member.network.close()
    while True:
        match await said.get():
            case float(at), str(message) if message.startswith(f"{member.name} is lost"):
                break
    await wait_until(lambda: not is_training(members))
    again_s = await wait_until(lambda: is_training(members))
    print(f"  {message}; the others train again {again_s:.1f} s later")
    return at - since


# Both


def allow_many_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def make_specs(run: RunFolder, num_members: int, *, tls: bool) -> Iterator[AgentSpec]:
    """Yield the leader's, then the members'; every host has an address of its own on loopback."""
    num_hosts = num_members + 1
    addresses = ["127.0.0.1", *(f"127.1.{n // 250}.{n % 250 + 1}" for n in range(num_members))]
    hosts = tuple(HostSpec(f"host{n + 1}", address, "lo", WORKERS) for n, address in enumerate(addresses))
    program = (sys.executable, "-c", "import time; time.sleep(1e6)")
    spec = AgentSpec(
        run=str(run.path),
        host=0,
        hosts=(replace(hosts[0], workers=1), *hosts[1:]),
        port=23_456,
        secret=secrets.token_hex(32),
        shares_folder=True,
        fewest=1,
        most=num_hosts,
        silence_s=SILENCE_S,
        hang_s=300.0,
        max_restarts=100,
        window_s=3600.0,
        files={},
        environment={},
        program=program,
    )
    for host, credentials in enumerate(make_credentials(num_hosts) if tls else [None] * num_hosts):
        yield replace(spec, host=host, credentials=credentials)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args()
    allow_many_files()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        run.create()
        leader, *members = make_specs(run, options.members, tls=options.tls)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=lead, args=(leader, theirs))
        process.start()
        try:
            is_good = asyncio.run(measure(members, ours, options.seconds))
        finally:
            ours.send("stop")
            process.join()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
