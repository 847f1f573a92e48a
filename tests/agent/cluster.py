"""A cluster on loopback for tests: every "host" is an agent on an address of its own, 127.0.0.1, 127.0.0.2, ..."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.agent.service import find_agent
from echelon.agent.spec import AgentSpec, HostSpec, dump_spec
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder, parse_json
from tests.waiting import wait_until


class Cluster:
    """Agents of one run; `folders` holds one run folder for all, or one for each."""

    def __init__(self, folders: Sequence[RunFolder], hosts: int, **changes: Any) -> None:
        self.folders = list(folders) if len(folders) > 1 else list(folders) * hosts
        addresses = [f"127.0.0.{number + 1}" for number in range(hosts)]
        self.spec = AgentSpec(
            run="",
            host=0,
            hosts=tuple(HostSpec(f"host{n + 1}", a, "lo", 1) for n, a in enumerate(addresses)),
            port=_free_port(addresses),
            secret=secrets.token_hex(32),
            shares_folder=len(folders) == 1,
            fewest=hosts // 2 + 1,
            most=hosts,
            silence_s=2.0,
            hang_s=0.0,
            max_restarts=3,
            window_s=3600,
        )
        self.spec = replace(self.spec, **changes)
        self._pids: set[int] = set()

    def start(self, *hosts: int) -> None:
        for host in hosts or range(len(self.spec.hosts)):
            spec = replace(self.spec, run=str(self.folders[host].path), host=host)
            command = [sys.executable, "-m", "echelon.agent", "start"]
            answer = subprocess.run(command, input=dump_spec(spec), capture_output=True, check=False)
            assert answer.returncode == 0, (answer.stdout, answer.stderr)
            self._pids.add(parse_json(answer.stdout)["pid"])

    def agent(self, host: int) -> int | None:
        return find_agent(self.folders[host], host)

    def signal(self, host: int, number: signal.Signals) -> None:
        """To the agent and its workers: what happens to a whole machine."""
        agent = self.agent(host)
        assert agent is not None
        for process in (agent, *workers_of(agent)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def events(self) -> list[str]:
        """What the agents have told, in order of time."""
        records = [
            record
            for host, folder in enumerate(self.folders)
            for record in read_records(folder.agent_records(host))
            if record["kind"] == "event"
        ]
        return [record["message"] for record in sorted(records, key=lambda record: record["time"])]

    def outcomes(self) -> list[str | None]:
        """How the run ended, as each agent saw it."""
        found: list[str | None] = []
        for host, folder in enumerate(self.folders):
            records = [r for r in read_records(folder.agent_records(host)) if r["kind"] == "outcome"]
            found.append(records[-1]["outcome"] if records else None)
        return found

    def wait(self) -> None:
        """Until all agents have left."""
        hosts = range(len(self.spec.hosts))
        self.wait_until(lambda: all(self.agent(host) is None for host in hosts))

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        wait_until(is_so, self.events)

    def kill_all(self) -> None:
        for pid in self._pids:
            for process in (pid, *workers_of(pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)


def workers_of(agent: int) -> list[int]:
    """The processes that an agent has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == agent:
                found.append(int(entry.name))
    return found


@contextlib.contextmanager
def open_cluster(folders: Sequence[RunFolder], hosts: int, **changes: Any) -> Iterator[Cluster]:
    cluster = Cluster(folders, hosts, **changes)
    try:
        yield cluster
    finally:
        cluster.kill_all()


def _free_port(addresses: Sequence[str]) -> int:
    for _ in range(100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            port = 20_000 + secrets.randbelow(10_000)
            for address in addresses:
                probe = stack.enter_context(socket.socket())
                probe.bind((address, port))
            return port
    raise AssertionError("no free port")
