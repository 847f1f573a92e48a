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

from echelon.errors import TrainingError, WorkerError
from echelon.monitor.records import RecordReader, read_records
from echelon.runfolder import RunFolder, open_no_link

INTERRUPTED_STATUS = 75
"""Exit status of a worker that saved and left because it was told to; train/worker.py returns it."""
WORKER_PROGRAM = (sys.executable, "-m", "echelon.train.worker")
_EXPECTED_STATUSES = {None, 0, INTERRUPTED_STATUS}
"""None: still running."""
_POLL_S = 0.1
_PATIENCE_S = 60.0
"""How long workers may take to save and leave before they are killed."""
_SAME_STOP_S = 1.0
"""Two signals within this time are one: `timeout` and others send theirs to the process and to its group."""
_FAILURE_GRACE_S = 2.0
"""How long the other workers have to notice that one failed, and to say so."""

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


class LocalJob:
    """Running workers, each with a process group of its own. `program` is what they run, followed by the run's path."""

    def __init__(
        self,
        run: RunFolder,
        workers: int,
        lock: int,
        arguments: Sequence[str] = (),
        *,
        program: Sequence[str] = WORKER_PROGRAM,
    ) -> None:
        self._run = run
        self._started = time.time()
        self._log_starts: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()
        self._stopping_since: float | None = None
        self._has_asked = False
        self._must_kill = False
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
            raise

    def _start(self, rank: int, spec: WorkerSpec, listener: socket.socket, lock: int) -> None:
        environment = {**os.environ, **spec.environment}
        inherited = [lock]
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
        with _signals_call(self.stop):
            try:
                while None in self._statuses():
                    on_poll()
                    self._pass_on_stops()
                    if not _EXPECTED_STATUSES.issuperset(self._statuses()):
                        self._end_all(grace_s=_FAILURE_GRACE_S)
                    time.sleep(_POLL_S)
                on_poll()
            except BaseException:
                self._ask_to_leave()
                self._end_all(grace_s=_PATIENCE_S)
                raise
        self._raise_first_failure()
        return all(process.returncode == 0 for process in self._processes)

    def stop(self) -> None:
        """Have the workers save and leave; asked again, kill them. `wait` does it, so signal handlers may call this."""
        now = time.monotonic()
        if self._stopping_since is None:
            self._stopping_since = now
        elif now - self._stopping_since > _SAME_STOP_S:
            self._must_kill = True

    def _pass_on_stops(self) -> None:
        if self._stopping_since is None:
            return
        if not self._has_asked:
            self._has_asked = True
            self._ask_to_leave()
        if self._must_kill or time.monotonic() - self._stopping_since > _PATIENCE_S:
            self._end_all(grace_s=0.0)

    def _statuses(self) -> list[int | None]:
        return [_status(process) for process in self._processes]

    def _ask_to_leave(self) -> None:
        for process in self._processes:
            if _status(process) is None:
                process.terminate()

    def _end_all(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and not self._must_kill and None in self._statuses():
            time.sleep(0.05)
        for rank, process in enumerate(self._processes):
            if _status(process) is None:
                self._killed.add(rank)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _raise_first_failure(self) -> None:
        codes = [process.returncode for process in self._processes]
        failed = [rank for rank, code in enumerate(codes) if code not in _EXPECTED_STATUSES]
        is_stopping = self._stopping_since is not None
        unbegun = [rank for rank in failed if is_stopping and codes[rank] == -signal.SIGTERM]
        if not failed or (unbegun and self._killed.issuperset(set(failed) - set(unbegun))):
            return  # SIGTERM ends only workers that do not catch it yet, so that no step was under way
        if is_stopping and self._killed.issuperset(failed):
            raise TrainingError(
                f"{self._run.path}: the workers were killed before they had saved; "
                "the same command goes on from the last checkpoint"
            )
        rank = min(failed, key=self._failure_time)
        log = self._run.worker_log(rank)
        raise WorkerError(
            host=socket.gethostname(),
            rank=rank,
            exit_code=codes[rank],
            log=log,
            last_lines=_last_lines(log, self._log_starts[rank], 12),
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


def follow(run: RunFolder) -> RecordReader:
    """A reader of what worker 0 will write from now on."""
    return RecordReader(run.worker_records(0), from_end=True)


@contextlib.contextmanager
def _signals_call(action: Callable[[], None]) -> Iterator[None]:
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


def _last_lines(log: Path, start: int, count: int) -> list[str]:
    """The last lines after `start`, which leaves out what an earlier start of the run has printed."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
