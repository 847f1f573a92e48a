"""The workers of one host in one generation, watched by a thread, so that the agent can go on listening."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Literal

from echelon.agent.generation import Failure
from echelon.errors import FINAL_STATUS, EchelonError, WorkerError
from echelon.launch.local import LocalJob, StopRequests
from echelon.monitor.heartbeat import Pulse

_BROKEN_CONNECTION = re.compile(
    "connection (was )?(closed|reset|refused|timed out)|broken pipe|unreachable|no route to host",
    re.IGNORECASE,
)


class HostJob:
    """Starts workers and sees them through; `end` says how it went, None while they run."""

    def __init__(self, start: Callable[[StopRequests], LocalJob]) -> None:
        self.end: Literal["finished", "interrupted"] | Failure | None = None
        self.pulses: dict[int, Pulse] = {}
        self._start = start
        self._stops = StopRequests()
        self._hung: int | None = None
        self._thread = threading.Thread(target=self._run, name="workers", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Have the workers save and leave."""
        if not self._stops.is_set:
            self._stops.ask()

    def kill(self) -> None:
        """End the workers at once."""
        self._stops.insist()

    def blame(self, rank: int) -> None:
        """A worker here, or of another host, is found to hang."""
        self._hung = rank

    def wait(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            job = self._start(self._stops)

            def look() -> None:
                self.pulses = job.pulses()
                if self._hung in self.pulses:
                    job.blame(self._hung)

            self.end = "finished" if job.watch(look) else "interrupted"
        except WorkerError as error:
            is_first_hand = not _BROKEN_CONNECTION.search("\n".join(error.last_lines))
            self.end = Failure(str(error), error.exit_code == FINAL_STATUS, is_first_hand)
        except EchelonError:
            self.end = "interrupted"  # killed, as we wished
        except Exception as error:
            self.end = Failure(f"the workers could not be started: {error}", False, True)
            raise
