"""Workers on this machine: start them, watch them, stop them, say what went wrong.

This is the control half: it does not import torch, so it starts at once.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echelon.errors import INTERRUPTED_STATUS, TrainingError, WorkerError
from echelon.launch.placement import WORKER_PROGRAM, Placement, WorkerSpec, render_worker
from echelon.launch.stop_requests import StopRequests, signals_call
from echelon.launch.worker_process import Survivors, WorkerProcess
from echelon.monitor.heartbeat import HEARTBEAT_VARIABLE, Heartbeats, Pulse, find_hung
from echelon.monitor.records import read_records
from echelon.monitor.regrouping import REGROUP_VARIABLE, STORE_VARIABLE, LauncherEnd
from echelon.runfolder import RunFolder, open_no_link, open_regular

_EXPECTED_STATUSES = {None, 0, INTERRUPTED_STATUS}
"""None: still running."""
_POLL_S = 0.1
_PATIENCE_S = 300.0
"""How long workers may take to save and leave before they are killed."""
_FAILURE_GRACE_S = 2.0
"""How long the other workers have to notice that one failed, and to say so."""
_REGROUP_S = 60.0
"""How long workers that keep their weights may take to finish what they are computing and leave their group."""
_ASK_AGAIN_S = 0.5
START_S = 120.0
"""The least time that a worker may be silent before its first step: importing libraries cannot beat."""
_STACKS_S = 2.0
"""How long workers may take to write their stacks."""
_LAST_LINES = 12
_STACK_LINES = 24


@dataclass(frozen=True)
class _Hang:
    """A worker that stopped making progress."""

    rank: int
    pulse: Pulse

    @property
    def cause(self) -> str:
        stopped = ", stopped by a signal" if self.pulse.is_stopped else ""
        return f"no progress for {self.pulse.silent_s:.0f} seconds at step {self.pulse.step}{stopped}"


class LocalJob:
    """This host's workers of one generation, each with a process group of its own.

    `program` is what they run, followed by the run's path. One that makes no progress for `hang_s` seconds counts
    as failed; 0 does not look. `place` says which part of a larger group they are; the group's first host passes the
    `listener` that its store takes over. With `keeps_survivors`, workers that can continue without one that failed are
    there afterwards, as `survivors`, for the next generation's job, which takes them over.
    """

    def __init__(
        self,
        run: RunFolder,
        workers: int,
        lock: int | None,
        arguments: Sequence[str] = (),
        *,
        program: Sequence[str] = WORKER_PROGRAM,
        stops: StopRequests | None = None,
        hang_s: float = 0.0,
        place: Placement | None = None,
        listener: socket.socket | None = None,
        keeps_survivors: bool = False,
        survivors: Survivors | None = None,
    ) -> None:
        self._run = run
        self._place = place or Placement(workers)
        self._stops = stops or StopRequests()
        self._hang_s = hang_s
        self._hang: _Hang | None = None
        self._blamed: int | None = None
        self._keeps_survivors = keeps_survivors
        if survivors is not None and survivors.heartbeats.size < workers:
            survivors.end()
            survivors = None
        self._heartbeats = survivors.heartbeats if survivors else Heartbeats(workers)
        self.survivors: Survivors | None = None
        """The workers that are left after `watch` raised an error."""
        self._started = time.time()
        self._workers: list[WorkerProcess] = []
        self._killed: set[int] = set()
        self._has_asked = False
        self._is_released = False
        self.failed_at = math.inf
        """When the worker failed that `watch` raised an error for: 0 if it died or fell silent without a word."""
        try:
            if place is None:
                listener = listen("127.0.0.1")
                self._place = replace(self._place, port=listener.getsockname()[1])
            specs = [
                render_worker(run, self._place, local_rank, workers, arguments, program=program)
                for local_rank in range(workers)
            ]
            self._put_to_work(specs, lock, listener, survivors)
        except BaseException:
            self._end_all(grace_s=0.0)
            self._close(None)
            raise
        finally:
            if survivors is not None:
                survivors.release(self._workers)
            if listener is not None:
                listener.close()  # the first worker has it

    def _put_to_work(
        self,
        specs: Sequence[WorkerSpec],
        lock: int | None,
        listener: socket.socket | None,
        survivors: Survivors | None,
    ) -> None:
        """Start a worker for each spec, or have a survivor take its place."""
        taken_over = _assign(survivors.workers if survivors else [], len(specs))
        taken_places = {worker.pulse_place for worker in taken_over.values()}
        free_places = [number for number in range(self._heartbeats.size) if number not in taken_places]
        for local_rank, spec in enumerate(specs):
            store = listener if local_rank == 0 else None
            survivor = taken_over.get(local_rank)
            if survivor is None:
                self._workers.append(self._start(local_rank, free_places.pop(0), spec, store, lock))
            else:
                survivor.join(local_rank, spec, store)
                self._workers.append(survivor)

    def _start(
        self,
        local_rank: int,
        pulse_place: int,
        spec: WorkerSpec,
        listener: socket.socket | None,
        lock: int | None,
    ) -> WorkerProcess:
        self._heartbeats.clear(pulse_place)
        environment = {**os.environ, **spec.environment, "ECHELON_LAUNCHER": str(os.getpid())}
        environment[HEARTBEAT_VARIABLE] = f"{self._heartbeats.descriptor}:{pulse_place}"
        inherited = [self._heartbeats.descriptor] if lock is None else [lock, self._heartbeats.descriptor]
        if listener is not None:
            environment[STORE_VARIABLE] = str(listener.fileno())
            inherited.append(listener.fileno())
        line = LauncherEnd() if self._keeps_survivors else None
        if line is not None:
            environment[REGROUP_VARIABLE] = str(line.worker_end.fileno())
            inherited.append(line.worker_end.fileno())
        path = self._run.worker_log(self._place.first_rank + local_rank)
        with open(path, "ab", opener=open_no_link) as log:
            log_start = log.tell()

            def begin() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    spec.command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=inherited,
                    start_new_session=True,  # Ctrl-C reaches the launcher alone, which tells the workers
                )

            process = _starter().submit(begin).result()
        if line is not None:
            line.worker_end.close()
        return WorkerProcess(local_rank, process, pulse_place, path, log_start, line)

    def wait(self, on_poll: Callable[[], None]) -> bool:
        """Like `watch`, with SIGINT, SIGTERM and SIGHUP as stop requests."""
        with signals_call(self.stop):
            return self.watch(on_poll)

    def watch(self, on_poll: Callable[[], None]) -> bool:
        """Wait for all workers, calling `on_poll` often; True if they finished, False if they were interrupted.

        A stop request makes the workers save and leave, another kills them. Raises WorkerError if a worker failed,
        TrainingError if they were killed before they had saved. When this returns or raises, only the
        `survivors` are left.
        """
        try:
            while self._those_at_work():
                on_poll()
                self._pass_on_stops()
                if self._is_broken():
                    self._end_all_but_survivors()
                    break
                self._end_those_that_hang()
                time.sleep(_POLL_S)
            on_poll()
            left = [worker for worker in self._workers if worker.is_waiting]
            if left and not self._stops.is_set:
                self.survivors = Survivors(self._heartbeats, left)
            else:
                self._end_all(grace_s=0.0)
        except BaseException:
            self._ask_to_leave()
            self._end_all(grace_s=_PATIENCE_S)
            raise
        finally:
            self._close(self.survivors)
        self._raise_first_failure()
        return all(worker.process.returncode == 0 for worker in self._workers)

    def _those_at_work(self) -> list[tuple[int, WorkerProcess]]:
        """The workers that run, by local rank, without those that wait for another group."""
        return [
            (rank, worker)
            for rank, worker in enumerate(self._workers)
            if worker.status is None and not worker.is_waiting
        ]

    def _close(self, survivors: Survivors | None) -> None:
        """Let go of what only survivors still need."""
        for worker in self._workers:
            if worker.line is not None and (survivors is None or worker not in survivors.workers):
                worker.line.close()
        if survivors is None:
            self._heartbeats.close()

    def _is_broken(self) -> bool:
        """Whether a worker of this group is lost, here or on another host."""
        has_failed = not _EXPECTED_STATUSES.issuperset(self._statuses())
        return has_failed or self._is_released or any(worker.is_waiting for worker in self._workers)

    def _end_all_but_survivors(self) -> None:
        """A worker is lost: have those that can continue leave their group, and end the others."""
        begun = time.monotonic()
        asked_at = -math.inf
        while left := self._those_at_work():
            now = time.monotonic()
            may_continue = any(worker.is_able for _, worker in left) and not self._stops.is_set
            patience_s = 0.0 if self._is_released else _FAILURE_GRACE_S
            patience_s = _REGROUP_S if may_continue else patience_s
            if now - begun > patience_s or self._stops.must_kill:
                break
            if now - asked_at >= _ASK_AGAIN_S:  # one that was just about to join may not have heard
                asked_at = now
                for _, worker in left:
                    worker.abandon()
            time.sleep(0.02)
        for rank, worker in left:
            self._killed.add(rank)
            worker.end()

    def stop(self) -> None:
        """Have the workers save and leave; asked again, kill them. `wait` does it, so signal handlers may call this."""
        self._stops.ask()

    def pulses(self) -> dict[int, Pulse]:
        """The heartbeats of the running workers, by rank."""
        return {self._place.first_rank + rank: pulse for rank, pulse in self._local_pulses().items()}

    def _local_pulses(self) -> dict[int, Pulse]:
        pulses = self._heartbeats.read()
        return {
            rank: replace(pulses[worker.pulse_place], is_stopped=worker.is_stopped)
            for rank, worker in enumerate(self._workers)
            if worker.status is None
        }

    def blame(self, rank: int) -> None:
        """Treat this worker as hung: the leader, which sees all hosts, found that it holds the others up."""
        self._blamed = rank - self._place.first_rank

    def release(self) -> None:
        """The group is over: workers are lost on other hosts, which this host's may not notice."""
        self._is_released = True

    def _pass_on_stops(self) -> None:
        if self._stops.since is None:
            return
        if not self._has_asked:
            self._has_asked = True
            self._ask_to_leave()
        if self._stops.must_kill or time.monotonic() - self._stops.since > _PATIENCE_S:
            self._end_all(grace_s=0.0)

    def _end_those_that_hang(self) -> None:
        """If a worker hangs, have all write their stacks, and end them."""
        if not self._hang_s or self._stops.is_set:
            return
        pulses, is_whole_group = self._local_pulses(), self._place.size == len(self._workers)
        rank = find_hung(pulses, self._hang_s, START_S, is_whole_group=is_whole_group)
        rank = rank if self._blamed is None else self._blamed
        if rank is None or rank not in pulses:
            return
        self._hang = _Hang(rank, pulses[rank])
        self._ask_for_stacks()
        self._killed.add(rank)
        self._workers[rank].end()
        self._end_all_but_survivors()

    def _ask_for_stacks(self) -> None:
        """SIGUSR1, which train/worker.py answers with its stack, in its log; SIGCONT lets a stopped one answer."""
        asked = [worker for worker in self._workers if worker.status is None]
        sizes = [worker.log.stat().st_size for worker in asked]
        for worker in asked:
            for number in (signal.SIGUSR1, signal.SIGCONT):
                worker.process.send_signal(number)
        deadline = time.monotonic() + _STACKS_S
        while time.monotonic() < deadline and not self._stops.must_kill:
            time.sleep(_POLL_S)
            if all(worker.log.stat().st_size > size for worker, size in zip(asked, sizes, strict=True)):
                break
        time.sleep(_POLL_S)  # so that stacks that have begun are written whole

    def _statuses(self) -> list[int | None]:
        return [worker.status for worker in self._workers]

    def _ask_to_leave(self) -> None:
        for worker in self._workers:
            if worker.status is None:
                worker.process.terminate()

    def _end_all(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not self._stops.must_kill and self._those_at_work():
            time.sleep(0.05)
        for rank, worker in enumerate(self._workers):
            if worker.status is None:
                self._killed.add(rank)
            worker.end()

    def _raise_first_failure(self) -> None:
        codes = [worker.process.returncode for worker in self._workers]
        if self._hang:
            self.failed_at = 0.0
            raise self._error(self._hang.rank, self._hang.cause)
        failed = [rank for rank, code in enumerate(codes) if code not in _EXPECTED_STATUSES]
        if not failed and self.survivors:
            self.failed_at = time.time()
            raise self._error(self._workers.index(self.survivors.workers[0]), "connection lost")
        if not failed:
            return
        # SIGTERM ends only workers that do not catch it yet, so no step was under way.
        unbegun = {rank for rank in failed if codes[rank] == -signal.SIGTERM}
        if self._stops.is_set and unbegun.union(self._killed).issuperset(failed):
            if unbegun:
                return
            raise TrainingError(
                f"{self._run.path}: the workers were killed before they had saved; "
                "the same command resumes from the last checkpoint"
            )
        first = min(failed, key=self._failure_time)
        self.failed_at = self._failure_time(first)
        raise self._error(first)

    def _error(self, rank: int, cause: str | None = None) -> WorkerError:
        worker = self._workers[rank]
        log, code = worker.log, worker.process.returncode
        lines = lines_since(log, worker.log_start)
        return WorkerError(
            host=socket.gethostname(),
            rank=self._place.first_rank + rank,
            exit_code=0 if code is None else code,
            log=log,
            last_lines=main_stack(lines) if self._hang else lines[-_LAST_LINES:],
            cause=cause,
            message=str(self._failure(rank).get("message", "")) if cause is None else "",
        )

    def _failure_time(self, rank: int) -> float:
        """When a worker failed, for finding the first. One that died without a word was killed from outside, which
        made the others fail; those that we killed ourselves come last."""
        return math.inf if rank in self._killed else float(self._failure(rank).get("time", 0.0))

    def _failure(self, rank: int) -> dict[str, Any]:
        """The record that a worker wrote when it failed; empty if it died without a word."""
        records = read_records(self._run.worker_records(self._place.first_rank + rank))
        found = [r for r in records if r["kind"] == "failure" and r.get("time", 0) >= self._started]
        return found[0] if found else {}


@functools.cache
def _starter() -> ThreadPoolExecutor:
    """The thread that starts all workers: when it ends, which is when this process does, the kernel tells them."""
    return ThreadPoolExecutor(1, thread_name_prefix="starter")


def _assign(survivors: Sequence[WorkerProcess], workers: int) -> dict[int, WorkerProcess]:
    """Which survivor is which of `workers`: the one that it was, if it can."""
    seated = {worker.local_rank: worker for worker in survivors if worker.local_rank < workers}
    free = [number for number in range(workers) if number not in seated]
    others = [worker for worker in survivors if worker.local_rank >= workers]
    return seated | dict(zip(free, others, strict=False))


def listen(address: str, port: int = 0) -> socket.socket:
    """A socket that listens on `address` alone."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener


def main_stack(lines: list[str]) -> list[str]:
    """Where a worker's main thread was: the innermost frames of the last stack that faulthandler has written."""
    heads = [number for number, line in enumerate(lines) if line.endswith("(most recent call first):")]
    return lines[heads[-1] :][:_STACK_LINES] if heads else lines[-_LAST_LINES:]


def lines_since(log: Path, start: int) -> list[str]:
    """The log's last lines after `start`, which leaves out what an earlier start of the run has printed."""
    try:
        with open(log, "rb", opener=open_regular) as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - 65536))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
