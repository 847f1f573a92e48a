"""What an agent does on its host: it starts, drains and ends workers, holds the lease on a shared run folder, and
writes records. decision.py says when."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Protocol

from echelon.agent.actions import (
    Action,
    ActionResult,
    BlameWorker,
    CheckFolder,
    ClaimFolder,
    DrainWorkers,
    FolderChecked,
    FolderClaimed,
    KillWorkers,
    Listen,
    Listening,
    RecordEvent,
    ReleaseFolder,
    RunHasEnded,
    StartWorkers,
    WorkersEnd,
)
from echelon.agent.generation import Generation
from echelon.agent.outcome import read_outcomes
from echelon.agent.spec import AgentSpec
from echelon.agent.watched_job import WatchedJob
from echelon.launch.local import LocalJob, listen
from echelon.launch.placement import WORKER_PROGRAM, Placement
from echelon.launch.stop_requests import StopRequests
from echelon.launch.worker_process import Survivors
from echelon.lease import Lease
from echelon.monitor.heartbeat import Pulse
from echelon.runfolder import RunFolder


class Job(Protocol):
    """This host's workers in one generation (watched_job.py, or the simulation's)."""

    end: WorkersEnd | None
    """None while they run."""
    pulses: dict[int, Pulse]

    @property
    def survivors(self) -> Survivors | None:
        """Workers that wait for the next generation."""
        ...

    def drain(self) -> None: ...
    def kill(self) -> None: ...
    def release(self) -> None: ...
    def blame(self, rank: int) -> None: ...
    def wait(self) -> None: ...


class HostExecutor:
    """Carries an agent's actions out. Methods may block on the run folder's file system."""

    def __init__(
        self,
        spec: AgentSpec,
        run: RunFolder,
        lock: int | None,
        tell: Callable[[RecordEvent], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        place: Callable[[AgentSpec, Generation], Placement] | None = None,
    ) -> None:
        self._place = place or placement_of
        self._spec, self._run, self._lock, self._tell = spec, run, lock, tell
        self._lease = Lease(run, spec.me.name, clock) if spec.needs_lease else None
        self._listener: socket.socket | None = None
        self._job: Job | None = None
        self._survivors: Survivors | None = None
        self.on_workers_end: Callable[[], object] = lambda: None
        """Called in another thread."""

    @property
    def pulses(self) -> dict[int, Pulse]:
        return self._job.pulses if self._job else {}

    def take_workers_end(self) -> WorkersEnd | None:
        """How the workers have ended, told once; None while they run, or if there are none."""
        if self._job is None or self._job.end is None:
            return None
        job, self._job = self._job, None
        job.wait()
        self._survivors = job.survivors
        return job.end

    def carry_out(self, action: Action) -> ActionResult | None:
        match action:
            case Listen():
                return self._listen()
            case StartWorkers(generation):
                self._job = self._start(generation)
            case DrainWorkers():
                if self._job:
                    self._job.drain()
            case KillWorkers(keeps_survivors):
                if self._job:
                    (self._job.release if keeps_survivors else self._job.kill)()
            case BlameWorker(rank):
                if self._job:
                    self._job.blame(rank)
            case CheckFolder(is_ours):
                return self._check_folder(is_ours)
            case ClaimFolder(number, because):
                return self._claim_folder(number, because)
            case ReleaseFolder():
                self._release_folder()
            case RecordEvent():
                self._tell(action)
        return None

    def close(self, *, must_save: bool = False) -> None:
        """End what is left of the workers; `must_save`: let them save before they leave."""
        if self._job is not None:
            (self._job.drain if must_save else self._job.kill)()
            self._job.wait()
            self._survivors = self._job.survivors
        if self._survivors is not None:
            self._survivors.end()
        self._close_listener()

    def _listen(self) -> Listening:
        self._close_listener()
        self._listener = listen(self._spec.me.address)
        return Listening(self._listener.getsockname()[1])

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _start(self, generation: Generation) -> Job:
        listener, self._listener = self._listener, None
        if generation.leader != self._spec.host and listener is not None:
            listener.close()  # of an earlier generation, which this host led
            listener = None
        survivors, self._survivors = self._survivors, None

        def start(stops: StopRequests) -> LocalJob:
            return LocalJob(
                self._run,
                self._spec.me.workers_in(generation),
                self._lock,
                program=self._spec.program or WORKER_PROGRAM,
                stops=stops,
                hang_s=self._spec.hang_s,
                place=self._place(self._spec, generation),
                listener=listener,
                keeps_survivors=True,
                survivors=survivors,
            )

        return WatchedJob(start, self.on_workers_end)

    def _check_folder(self, is_ours: bool) -> FolderChecked:
        assert self._lease is not None
        try:
            self._lease.look()
            return FolderChecked(is_taken=is_ours and not self._lease.renew())
        except OSError as error:
            return FolderChecked(error.strerror or str(error))

    def _claim_folder(self, number: int, because: str) -> FolderClaimed | RunHasEnded:
        assert self._lease is not None
        try:
            self._lease.look()  # raises if the folder is not there
            ended = read_outcomes(self._run).get(self._spec.launch)
            return RunHasEnded(ended) if ended else FolderClaimed(self._lease.claim(number), because)
        except OSError as error:
            return FolderClaimed(None, problem=str(error))

    def _release_folder(self) -> None:
        if self._lease is not None:
            with contextlib.suppress(OSError):
                self._lease.give_back()


def placement_of(spec: AgentSpec, generation: Generation) -> Placement:
    """Where a host's workers stand: the leader's come first, as the first of them keeps the group's store."""
    order = [generation.leader, *(host for host in generation.members if host != generation.leader)]
    counts = [spec.hosts[host].workers_in(generation) for host in order]
    before = order.index(spec.host)
    return Placement(
        size=sum(counts),
        first_rank=sum(counts[:before]),
        address=spec.hosts[generation.leader].address,
        port=generation.store_port,
        interface=spec.me.interface,
        num_hosts=len(generation.members),
        generation=generation.number if spec.needs_lease else 0,
        shares_folder=spec.shares_folder,
    )
