"""Workers on this machine: start them, watch them, stop them, say what went wrong.

This is the control half: it does not import torch, so it starts at once.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from echelon.errors import INTERRUPTED_STATUS, TrainingError, WorkerError
from echelon.monitor.heartbeat import HEARTBEAT_VARIABLE, Heartbeats, Pulse, find_hung
from echelon.monitor.records import RecordReader, read_records
from echelon.runfolder import RunFolder, open_no_link

WORKER_PROGRAM = (sys.executable, "-m", "echelon.train.worker")
_EXPECTED_STATUSES = {None, 0, INTERRUPTED_STATUS}
"""None: still running."""
_POLL_S = 0.1
_PATIENCE_S = 300.0
"""How long workers may take to save and leave before they are killed."""
_SAME_STOP_S = 1.0
"""Two signals within this time are one: `timeout` and others send theirs to the process and to its group."""
_FAILURE_GRACE_S = 2.0
"""How long the other workers have to notice that one failed, and to say so."""
_START_S = 120.0
"""The least time that a worker may be silent before its first step: importing libraries cannot beat."""
_STACKS_S = 2.0
"""How long workers that are asked where they are may take to write it down."""
_LAST_LINES = 12
_STACK_LINES = 24

# glibc gives freed memory back to the system and asks for it anew at every step; these settings let it keep
# the memory, which makes training on a CPU 1.1 to 1.5 times faster.
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**34),
    "MALLOC_TOP_PAD_": str(2**26),
}


@dataclass(frozen=True)
class WorkerSpec:
    """What one worker is started with."""

    command: list[str]
    environment: dict[str, str]


def render_worker(
    run: RunFolder,
    rank: int,
    workers: int,
    port: int,
    arguments: Sequence[str] = (),
    *,
    program: Sequence[str] = WORKER_PROGRAM,
) -> WorkerSpec:
    """Command and environment of one worker; the store listens on loopback only."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, available_cores() // workers))
    return WorkerSpec(
        command=[*program, str(run.path), *arguments],
        environment={
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": threads,
            "PYTHONUNBUFFERED": "1",
            **_ALLOCATOR,
        },
    )


def available_cores() -> int:
    """Cores this process may use: a container or `taskset` may leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class StopRequests:
    """Requests to save and leave: one asks, another, a while later, insists. Signal handlers may call `ask`."""

    def __init__(self) -> None:
        self.since: float | None = None
        self.must_kill = False

    @property
    def is_set(self) -> bool:
        return self.since is not None

    def ask(self) -> None:
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.since > _SAME_STOP_S:
            self.must_kill = True


@dataclass(frozen=True)
class _Hang:
    """A worker that stopped getting on."""

    rank: int
    pulse: Pulse
    is_stopped: bool

    @property
    def cause(self) -> str:
        stopped = ", stopped by a signal" if self.is_stopped else ""
        return f"no progress for {self.pulse.silent_s:.0f} seconds at step {self.pulse.step}{stopped}"


class LocalJob:
    """One generation of workers, each with a process group of its own.

    `program` is what they run, followed by the run's path. One that makes no progress for `hang_s` seconds counts
    as failed; 0 does not look.
    """

    def __init__(
        self,
        run: RunFolder,
        workers: int,
        lock: int,
        arguments: Sequence[str] = (),
        *,
        program: Sequence[str] = WORKER_PROGRAM,
        stops: StopRequests | None = None,
        hang_s: float = 0.0,
    ) -> None:
        self._run = run
        self._stops = stops or StopRequests()
        self._hang_s = hang_s
        self._hang: _Hang | None = None
        self._heartbeats = Heartbeats(workers)
        self._started = time.time()
        self._log_starts: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()
        self._has_asked = False
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen(workers + 8)
                port = listener.getsockname()[1]
                for rank in range(workers):
                    spec = render_worker(run, rank, workers, port, arguments, program=program)
                    self._start(rank, spec, listener, lock)
        except BaseException:
            self._end_all(grace_s=0.0)
            self._heartbeats.close()
            raise

    def _start(self, rank: int, spec: WorkerSpec, listener: socket.socket, lock: int) -> None:
        environment = {**os.environ, **spec.environment, "ECHELON_LAUNCHER": str(os.getpid())}
        environment[HEARTBEAT_VARIABLE] = str(self._heartbeats.descriptor)
        inherited = [lock, self._heartbeats.descriptor]
        if rank == 0:
            environment["ECHELON_STORE_FD"] = str(listener.fileno())
            inherited.append(listener.fileno())
        with open(self._run.worker_log(rank), "ab", opener=open_no_link) as log:
            self._log_starts.append(log.tell())
            process = subprocess.Popen(
                spec.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which tells the workers
            )
        self._processes.append(process)

    def wait(self, on_poll: Callable[[], None]) -> bool:
        """Wait for all workers, calling `on_poll` often; True if they finished, False if they were interrupted.

        SIGINT, SIGTERM and SIGHUP make the workers save and leave; a second one kills them. Raises WorkerError
        where a worker failed, TrainingError where they were killed before they had saved. No worker is left when
        this returns or raises.
        """
        with signals_call(self.stop):
            try:
                while None in self._statuses():
                    on_poll()
                    self._pass_on_stops()
                    if not _EXPECTED_STATUSES.issuperset(self._statuses()):
                        self._end_all(grace_s=_FAILURE_GRACE_S)
                    self._end_those_that_hang()
                    time.sleep(_POLL_S)
                on_poll()
            except BaseException:
                self._ask_to_leave()
                self._end_all(grace_s=_PATIENCE_S)
                raise
            finally:
                self._heartbeats.close()
        self._raise_first_failure()
        return all(process.returncode == 0 for process in self._processes)

    def stop(self) -> None:
        """Have the workers save and leave; asked again, kill them. `wait` does it, so signal handlers may call this."""
        self._stops.ask()

    def _pass_on_stops(self) -> None:
        if self._stops.since is None:
            return
        if not self._has_asked:
            self._has_asked = True
            self._ask_to_leave()
        if self._stops.must_kill or time.monotonic() - self._stops.since > _PATIENCE_S:
            self._end_all(grace_s=0.0)

    def _end_those_that_hang(self) -> None:
        """Find a worker that hangs, have all write down where they are, and end them."""
        if not self._hang_s or self._stops.is_set:
            return
        statuses = self._statuses()
        pulses = {rank: p for rank, p in enumerate(self._heartbeats.read()) if statuses[rank] is None}
        rank = find_hung(pulses, self._hang_s, _START_S)
        if rank is None:
            return
        stopped = [other for other in pulses if _is_stopped(self._processes[other])]
        rank = stopped[0] if stopped else rank
        self._hang = _Hang(rank, pulses[rank], bool(stopped))
        self._ask_for_stacks()
        self._end_all(grace_s=0.0)

    def _ask_for_stacks(self) -> None:
        """SIGUSR1, which train/worker.py answers with its stack, in its log; SIGCONT lets a stopped one answer."""
        asked = [rank for rank, process in enumerate(self._processes) if _status(process) is None]
        sizes = {rank: self._run.worker_log(rank).stat().st_size for rank in asked}
        for rank in asked:
            for number in (signal.SIGUSR1, signal.SIGCONT):
                self._processes[rank].send_signal(number)
        deadline = time.monotonic() + _STACKS_S
        while time.monotonic() < deadline and not self._stops.must_kill:
            time.sleep(_POLL_S)
            if all(self._run.worker_log(rank).stat().st_size > size for rank, size in sizes.items()):
                break
        time.sleep(_POLL_S)  # so that stacks that have begun are written whole

    def _statuses(self) -> list[int | None]:
        return [_status(process) for process in self._processes]

    def _ask_to_leave(self) -> None:
        for process in self._processes:
            if _status(process) is None:
                process.terminate()

    def _end_all(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not self._stops.must_kill and None in self._statuses():
            time.sleep(0.05)
        for rank, process in enumerate(self._processes):
            if _status(process) is None:
                self._killed.add(rank)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _raise_first_failure(self) -> None:
        codes = [process.returncode for process in self._processes]
        if self._hang:
            raise self._error(self._hang.rank, self._hang.cause)
        failed = [rank for rank, code in enumerate(codes) if code not in _EXPECTED_STATUSES]
        is_stopping = self._stops.is_set
        unbegun = [rank for rank in failed if is_stopping and codes[rank] == -signal.SIGTERM]
        if not failed or (unbegun and self._killed.issuperset(set(failed) - set(unbegun))):
            return  # SIGTERM ends only workers that do not catch it yet, so that no step was under way
        if is_stopping and self._killed.issuperset(failed):
            raise TrainingError(
                f"{self._run.path}: the workers were killed before they had saved; "
                "the same command goes on from the last checkpoint"
            )
        raise self._error(min(failed, key=self._failure_time))

    def _error(self, rank: int, cause: str | None = None) -> WorkerError:
        log = self._run.worker_log(rank)
        lines = _lines_since(log, self._log_starts[rank])
        return WorkerError(
            host=socket.gethostname(),
            rank=rank,
            exit_code=self._processes[rank].returncode,
            log=log,
            last_lines=main_stack(lines) if self._hang else lines[-_LAST_LINES:],
            cause=cause,
        )

    def _failure_time(self, rank: int) -> float:
        """When a worker failed, for finding the first. One that died without a word was killed from outside, which
        made the others fail; those that we killed ourselves come last."""
        if rank in self._killed:
            return math.inf
        records = read_records(self._run.worker_records(rank))
        times = [r["time"] for r in records if r["kind"] == "failure" and r.get("time", 0) >= self._started]
        return float(times[0]) if times else 0.0


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """A worker's exit status, None while it runs. Whatever it started ends with it."""
    if process.returncode is None:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:  # but not reaped, so its group's number cannot belong to anyone else yet
            os.killpg(process.pid, signal.SIGKILL)
    return process.poll()


def _is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether a running worker is stopped by SIGSTOP or a debugger; False where the system does not tell."""
    try:
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


def follow(run: RunFolder) -> RecordReader:
    """A reader of what worker 0 will write from now on."""
    return RecordReader(run.worker_records(0), from_end=True)


@contextlib.contextmanager
def signals_call(action: Callable[[], None]) -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into a call of `action`."""

    def handler(_number: int, _frame: FrameType | None) -> None:
        action()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def main_stack(lines: list[str]) -> list[str]:
    """Where a worker's main thread was: the innermost frames of the last stack that faulthandler has written."""
    heads = [number for number, line in enumerate(lines) if line.endswith("(most recent call first):")]
    return lines[heads[-1] :][:_STACK_LINES] if heads else lines[-_LAST_LINES:]


def _lines_since(log: Path, start: int) -> list[str]:
    """The log's last lines after `start`, which leaves out what an earlier start of the run has printed."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - 65536))
            return file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
