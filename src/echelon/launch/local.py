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

from echelon.errors import WorkerError
from echelon.monitor.records import RecordReader, read_records
from echelon.runfolder import RunFolder

INTERRUPTED_STATUS = 75
"""Exit status of a worker that saved and left because it was told to; train/worker.py returns it."""
_GOOD_STATUSES = (0, INTERRUPTED_STATUS)
_POLL_S = 0.1
_PATIENCE_S = 60.0
"""How long workers may take to save and leave before they are killed."""

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
    run: RunFolder, rank: int, workers: int, port: int, arguments: Sequence[str] = ()
) -> WorkerSpec:
    """Command and environment of one worker; the store listens on loopback only."""
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, available_cores() // workers))
    return WorkerSpec(
        command=[sys.executable, "-m", "echelon.train.worker", str(run.path), *arguments],
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
    """Running workers."""

    def __init__(self, run: RunFolder, workers: int, lock: int, arguments: Sequence[str] = ()) -> None:
        self._run = run
        self._arguments = arguments
        self._is_stopping = False
        self._started = time.time()
        self._killed: set[int] = set()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(workers + 8)
            port = listener.getsockname()[1]
            self._processes = [self._start(rank, workers, port, listener, lock) for rank in range(workers)]

    def _start(
        self, rank: int, workers: int, port: int, listener: socket.socket, lock: int
    ) -> subprocess.Popen[bytes]:
        spec = render_worker(self._run, rank, workers, port, self._arguments)
        environment = {**os.environ, **spec.environment}
        inherited = [lock]
        if rank == 0:
            environment["ECHELON_STORE_FD"] = str(listener.fileno())
            inherited.append(listener.fileno())
        with open(self._run.worker_log(rank), "ab") as log:
            return subprocess.Popen(
                spec.command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which tells the workers
            )

    def wait(self, on_poll: Callable[[], None]) -> bool:
        """Wait for all workers, calling `on_poll` often; True if they finished, False if they were interrupted.

        SIGINT and SIGTERM make the workers save and leave; a second one kills them. Raises WorkerError.
        """
        with _signals_call(self.stop):
            started_stopping = None
            while any(process.poll() is None for process in self._processes):
                on_poll()
                if any(process.poll() not in (None, *_GOOD_STATUSES) for process in self._processes):
                    self._end_all(grace_s=2.0)
                if self._is_stopping and started_stopping is None:
                    started_stopping = time.monotonic()
                if started_stopping is not None and time.monotonic() - started_stopping > _PATIENCE_S:
                    self._end_all(grace_s=0.0)
                time.sleep(_POLL_S)
        on_poll()
        self._raise_first_failure()
        return all(process.returncode == 0 for process in self._processes)

    def stop(self) -> None:
        """Ask the workers to save and leave; asked twice, kill them."""
        number = signal.SIGKILL if self._is_stopping else signal.SIGTERM
        self._is_stopping = True
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _end_all(self, grace_s: float) -> None:
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and any(process.poll() is None for process in self._processes):
            time.sleep(0.05)
        for rank, process in enumerate(self._processes):
            if process.poll() is None:
                self._killed.add(rank)
                process.kill()
            process.wait()

    def _raise_first_failure(self) -> None:
        failed = [
            rank for rank, process in enumerate(self._processes) if process.returncode not in _GOOD_STATUSES
        ]
        if not failed:
            return
        rank = min(failed, key=self._failure_time)
        log = self._run.worker_log(rank)
        raise WorkerError(
            host=socket.gethostname(),
            rank=rank,
            exit_code=self._processes[rank].returncode,
            log=log,
            last_lines=_last_lines(log, 12),
        )

    def _failure_time(self, rank: int) -> float:
        """When a worker failed, for finding the first. One that died without a word was killed from outside, which
        made the others fail; those that we killed ourselves come last."""
        if rank in self._killed:
            return math.inf
        records = read_records(self._run.worker_records(rank))
        times = [r["time"] for r in records if r["kind"] == "failure" and r["time"] >= self._started]
        return float(times[0]) if times else 0.0


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


def _last_lines(log: Path, count: int) -> list[str]:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
