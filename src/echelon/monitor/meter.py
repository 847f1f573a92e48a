"""Where a worker's time goes: every moment between two records belongs to exactly one phase.

A lap costs well under a microsecond. On a GPU, whose work runs behind the program, moments are events on its stream.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

from echelon.monitor.interface_counters import InterfaceCounter

Phase = Literal[
    "data", "forward", "backward", "communication", "optimiser", "checkpoint", "evaluation", "other"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""`data` is waiting for the batch; `communication` what backward did not hide, waiting for slower workers included."""


class StepMeter:
    """A stop watch whose laps have names, and a counter of what the cluster's network interface moves meanwhile."""

    def __init__(
        self,
        card: InterfaceCounter | None = None,
        *,
        now: Callable[[], Any] = time.perf_counter,
        between: Callable[[Any, Any], float] = lambda start, end: operator.sub(end, start),
    ) -> None:
        self._now, self._between, self._card = now, between, card
        self._laps: list[tuple[Phase, Any]] = []
        self._since = now()
        self._cpu = time.process_time()
        if card is not None:
            card.take()

    def lap(self, phase: Phase) -> None:
        """Count the time since the last lap as `phase`."""
        self._laps.append((phase, self._now()))

    def take(self) -> dict[str, Any]:
        """What has been measured since the last call, for a record: `phases` in seconds, CPU seconds of this process,
        bytes at the card."""
        self.lap("other")
        phases: dict[str, float] = {}
        since = self._since
        for phase, moment in self._laps:
            phases[phase] = phases.get(phase, 0.0) + self._between(since, moment)
            since = moment
        self._since = since
        self._laps.clear()
        cpu, self._cpu = self._cpu, time.process_time()
        measured: dict[str, Any] = {
            "phases": {phase: round(seconds, 6) for phase, seconds in phases.items()},
            "cpu": round(self._cpu - cpu, 4),
        }
        if self._card is not None:
            measured["received"], measured["sent"] = self._card.take()
        return measured
