"""Where a run's time went: starting, the phases of steps, and the rest that no record explains.

Durations come from the workers' stop watches, not from the clock that stamps records: that one may be set, and it runs
on while the machine sleeps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from echelon.monitor.meter import PHASES
from echelon.monitor.records import Record, is_number
from echelon.monitor.run_state import FRESH_S

_LAUNCH_ROUNDING_S = 1.0
"""Launches are recorded in whole seconds, cut."""


@dataclass(frozen=True)
class Account:
    """Seconds of a run's first worker, over all of its starts."""

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    starting: float = 0.0
    """From the launch of the worker until it can make a step: imports, loading, the rendezvous."""
    unaccounted: float = 0.0
    """Between records, but in no phase: steps that were lost with a killed worker, and records without phases."""
    regrouping: float = 0.0
    """Between a worker's end and its restart within one launch: its group had lost a host, or one came back."""
    pauses: float = 0.0
    """Time without training: between a stop and the next launch, or while the machine slept or its clock was set."""

    @property
    def training(self) -> float:
        """Everything but pauses."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, float]:
        """What `training` is the sum of, by name."""
        return {
            "starting": self.starting,
            **self.phases,
            "regrouping": self.regrouping,
            "unaccounted": self.unaccounted,
        }


def account_for(records: Sequence[Record], launches: Sequence[float] = ()) -> Account:
    """Go through a worker's records (`training_records`) start by start; `launches` are the times at which the run was
    launched, as far as they are known."""
    phases: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    starting = unaccounted = regrouping = pauses = 0.0
    before: float | None = None
    for session in split_sessions(records):
        times = _times(session)
        if session[0]["kind"] == "start":
            loading = positive(session[0].get("setup_seconds"))
            starting += loading
            if times and before is not None:
                gap = max(0.0, times[0] - before - loading)
                if _is_restart(before, times[0], launches):
                    regrouping += gap
                else:
                    pauses += gap
        for record in session:
            for phase, seconds in phases_of(record).items():
                phases[phase] += seconds
        missing, paused = _unexplained(session)
        unaccounted, pauses = unaccounted + missing, pauses + paused
        before = times[-1] if times else before
    return Account(phases, starting, unaccounted, regrouping, pauses)


def split_launches(records: Sequence[Record], launches: Sequence[float]) -> list[list[list[Record]]]:
    """A worker's sessions, launch by launch; each is one of its own if the times of launches are not known."""
    found: list[list[list[Record]]] = []
    before: float | None = None
    for session in split_sessions(records):
        times = _times(session)
        if found and before is not None and times and _is_restart(before, times[0], launches):
            found[-1].append(session)
        else:
            found.append([session])
        before = times[-1] if times else before
    return found


def _is_restart(before: float, start: float, launches: Sequence[float]) -> bool:
    """Whether a worker that wrote nothing between two times was restarted by the launch that had started it."""
    has_begun = any(at <= before for at in launches)
    return has_begun and not any(before - _LAUNCH_ROUNDING_S < at <= start for at in launches)


def _times(session: Sequence[Record]) -> list[float]:
    return [float(record["time"]) for record in session if is_number(record.get("time"))]


def split_sessions(records: Sequence[Record]) -> list[list[Record]]:
    """Records from one start to the next."""
    numbers = itertools.accumulate(record["kind"] == "start" for record in records)
    pairs = itertools.groupby(zip(numbers, records, strict=True), key=lambda pair: pair[0])
    return [[record for _, record in group] for _, group in pairs]


def _unexplained(session: Sequence[Record]) -> tuple[float, float]:
    """Seconds of a session that are in no phase, and those in which it paused.

    A step tells what all of the time since the last one went into. Time beyond that is a pause if it is more than
    FRESH_S, for a host is sampled every other second: the machine slept, or its clock was set.
    """
    gaps: list[float] = []
    since: list[float] = []
    unnamed = 0.0
    for before, record in itertools.pairwise(session):
        since.append(_passed(before, record))
        covered = sum(phases_of(record).values())
        if not covered and record["kind"] == "step":
            covered = positive(record.get("seconds"))  # without saying on what
            unnamed += covered
        if covered:
            gaps.append(sum(since) - covered)
            since = []
    gaps += since
    missing = sum(gap for gap in gaps if gap <= FRESH_S)
    return max(0.0, missing) + unnamed, sum(gap for gap in gaps if gap > FRESH_S)


def _passed(before: Record, record: Record) -> float:
    """Seconds between two records; a clock that was set back takes no time back."""
    if not is_number(before.get("time")) or not is_number(record.get("time")):
        return 0.0
    return max(0.0, float(record["time"]) - float(before["time"]))


def phases_of(record: Record) -> dict[str, float]:
    """What a step's or an end's time was spent on, as far as it is recorded; records are untrusted input."""
    phases = record.get("phases")
    if record["kind"] not in ("step", "end") or not isinstance(phases, dict):
        return {}
    return {phase: positive(phases.get(phase)) for phase in PHASES}


def positive(value: Any) -> float:
    """A number of seconds from a record; 0 if it is not a number."""
    return max(0.0, float(value)) if is_number(value) else 0.0
