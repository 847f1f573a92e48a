"""Looking after this process's workers together with the other processes of their group."""

from __future__ import annotations

import time

from echelon.launch.local import LocalJob, StopRequests
from echelon.launch.meeting import Master, Member

_TELL_S = 1.0
_SILENT_S = 15.0
"""How long another process may say nothing. Longer than `restart.silence_seconds`: who is lost here ends the run."""
_TROUBLE_S = 5.0
"""How long workers have to save and leave after others have failed: where those are gone, they wait in vain."""


class Lookout:
    """Ends the workers where others have failed, and finds the worker that holds all of them up."""

    def __init__(self, others: Master | Member, stops: StopRequests, hang_s: float) -> None:
        self._others = others
        self._stops = stops
        self._hang_s = hang_s
        self._told = 0.0
        self._troubled_since: float | None = None

    def look(self, job: LocalJob) -> None:
        """What is to be done now; called often."""
        self._others.poll(_SILENT_S)
        now = time.monotonic()
        if self._others.is_troubled:
            self._end_workers(now)
        elif now - self._told > _TELL_S:
            self._told = now
            hung = self._others.share(job.pulses(), self._hang_s)
            if hung is not None:
                job.blame(hung)

    def _end_workers(self, now: float) -> None:
        self._troubled_since = self._troubled_since or now
        if not self._stops.is_set:
            self._stops.ask()
        elif now - self._troubled_since > _TROUBLE_S:
            self._stops.insist()
