"""The workers of one host in one generation, watched by a thread, so that the agent can keep listening."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from functools import partial

from echelon.agent.actions import WorkersEnd
from echelon.agent.generation import Failure
from echelon.errors import FINAL_STATUS, EchelonError, WorkerError
from echelon.launch.local import LocalJob
from echelon.launch.stop_requests import StopRequests
from echelon.launch.worker_process import Survivors
from echelon.monitor.heartbeat import Pulse

_BROKEN_CONNECTION = re.compile(
    "connection (was )?(closed|reset|refused|timed out)|broken pipe|unreachable|no route to host",
    re.IGNORECASE,
)

_MOST_CHARACTERS = 20_000
"""How much of a worker's last lines is kept: every heartbeat repeats them."""


class WatchedJob:
    """Starts workers and sees them through; `end` says how it went, None while they run."""

    def __init__(self, start: Callable[[StopRequests], LocalJob], on_end: Callable[[], object]) -> None:
        self.end: WorkersEnd | None = None
        self.pulses: dict[int, Pulse] = {}
        self.survivors: Survivors | None = None
        """Workers that have kept their weights when others failed."""
        self._start = start
        self._on_end = on_end
        self._stops = StopRequests()
        self._hung: int | None = None
        self._is_killed = False
        self._is_released = False
        self._thread = threading.Thread(target=self._run, name="workers", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Have the workers save and leave."""
        if not self._stops.is_set:
            self._stops.ask()

    def kill(self) -> None:
        """End the workers at once."""
        self._is_killed = True
        self._stops.insist()

    def release(self) -> None:
        """Have the workers leave their group, and keep those that can join another."""
        self._is_released = True

    def blame(self, rank: int) -> None:
        """A worker here, or of another host, is found to hang."""
        self._hung = rank

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self.end = self._see_through()
        except Exception as error:
            self.end = Failure(f"the workers could not be started: {error}", False, True)
            raise
        finally:
            self._on_end()

    def _see_through(self) -> WorkersEnd:
        job = None
        try:
            job = self._start(self._stops)
            return "finished" if job.watch(partial(self._look_at, job)) else "interrupted"
        except WorkerError as error:
            if job is None:
                return _describe(error, 0.0, 0)
            self.survivors = job.survivors
            return _describe(error, job.failed_at, len(job.survivors or ()))
        except EchelonError as error:
            return "interrupted" if self._is_killed else Failure(str(error), False, True)

    def _look_at(self, job: LocalJob) -> None:
        self.pulses = job.pulses()
        if self._hung in self.pulses:
            job.blame(self._hung)
        if self._is_released:
            job.release()


def _describe(error: WorkerError, failed_at: float, survivors: int) -> Failure:
    said = [error.cause, *error.last_lines]
    is_first_hand = not _BROKEN_CONNECTION.search("\n".join(said))
    return Failure(
        error.summary,
        error.exit_code == FINAL_STATUS,
        is_first_hand,
        error.details[:_MOST_CHARACTERS],
        error.rank,
        error.exit_code,
        failed_at if math.isfinite(failed_at) else 0.0,
        survivors,
    )
