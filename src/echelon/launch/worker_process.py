"""A worker's process as its launcher sees it, and those that wait for another group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from echelon.launch.placement import WorkerSpec
from echelon.monitor.heartbeat import Heartbeats
from echelon.monitor.regrouping import LauncherEnd


@dataclass
class WorkerProcess:
    """A worker's process, which may see several generations."""

    local_rank: int
    process: subprocess.Popen[bytes]
    pulse_place: int
    """Its place in the memory of the heartbeats."""
    log: Path
    """Its log, named after the rank that it was started with."""
    log_start: int
    line: LauncherEnd | None

    @property
    def status(self) -> int | None:
        """Its exit status, None while it runs. Whatever it started ends with it."""
        if self.process.returncode is None:
            ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:  # but not reaped, so its group's number cannot belong to anyone else yet
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.poll()

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped by SIGSTOP or a debugger; False if the system does not tell."""
        try:
            state = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state in "Tt"

    @property
    def is_able(self) -> bool:
        """Whether it would continue in another group."""
        return self.line is not None and self.line.readiness != "no"

    @property
    def is_waiting(self) -> bool:
        """Whether it has left its group, and waits for another one."""
        return self.line is not None and self.line.readiness == "waiting" and self.status is None

    def abandon(self) -> None:
        """Have it leave its group, if it would continue in another."""
        if self.line is not None and self.is_able:
            self.line.abandon()

    def join(self, local_rank: int, spec: WorkerSpec, store: socket.socket | None) -> None:
        """Have a waiting worker join a group as another would be started into it."""
        assert self.line is not None, "only a worker with a line waits"
        self.local_rank = local_rank
        self.line.join(spec.environment, store)

    def end(self) -> None:
        """Kill it if it runs, with whatever it started."""
        if self.status is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.line is not None:
            self.line.close()


@dataclass
class Survivors:
    """Workers that have lost others of their group, and wait for a new one with the weights that they have."""

    heartbeats: Heartbeats
    workers: list[WorkerProcess] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.workers)

    def release(self, taken: Sequence[WorkerProcess] = ()) -> None:
        """End those that were not taken over."""
        for worker in self.workers:
            if worker not in taken:
                worker.end()
        self.workers.clear()

    def end(self) -> None:
        """End all of them."""
        self.release()
        self.heartbeats.close()
