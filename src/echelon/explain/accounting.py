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
    ledger = Ledger()
    for record in records:
        ledger.add(record, launches)
    return ledger.account()


@dataclass
class Ledger:
    """An account that is kept while records come. Everything in it can be written as JSON."""

    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    starting: float = 0.0
    unnamed: float = 0.0
    """Of steps that do not say what it was spent on."""
    regrouping: float = 0.0
    pauses: float = 0.0
    missing_before: float = 0.0
    """In no phase, before the last start."""
    missing: float = 0.0
    """In no phase since then: less than zero if clocks are not exact."""
    waiting: list[float] = field(default_factory=list)
    """Between the records since the last one that told its time."""
    previous_time: float | None = None
    """Of the record before, if it has one."""
    last_time: float | None = None
    has_begun: bool = False

    def add(self, record: Record, launches: Sequence[float] = ()) -> None:
        """Count one more record."""
        now = float(record["time"]) if is_number(record.get("time")) else None
        if record["kind"] == "start":
            self._start(now, positive(record.get("setup_seconds")), launches)
        else:
            self._explain(record, now)
        self.has_begun = True
        self.previous_time = now
        self.last_time = self.last_time if now is None else now

    def is_new_launch(self, record: Record, launches: Sequence[float]) -> bool:
        """Whether a start that comes next is the first of a launch, and no restart within one."""
        now = record.get("time")
        return self.last_time is None or not (is_number(now) and _is_restart(self.last_time, now, launches))

    def _start(self, now: float | None, loading: float, launches: Sequence[float]) -> None:
        missing, paused = self._unexplained()
        self.missing_before += missing
        self.pauses += paused
        self.missing, self.waiting = 0.0, []
        self.starting += loading
        if now is not None and self.last_time is not None:
            gap = max(0.0, now - self.last_time - loading)
            if _is_restart(self.last_time, now, launches):
                self.regrouping += gap
            else:
                self.pauses += gap

    def _explain(self, record: Record, now: float | None) -> None:
        """Take the time that a record tells. Time beyond it is a pause if it is more than FRESH_S, for a host is
        sampled every other second: the machine slept, or its clock was set."""
        spent = phases_of(record)
        covered = sum(spent.values())
        for phase, seconds in spent.items():
            self.phases[phase] += seconds
        if not self.has_begun:
            return  # nothing tells how much time has passed
        passed = 0.0 if now is None or self.previous_time is None else now - self.previous_time
        self.waiting.append(max(0.0, passed))  # a clock that was set back takes no time back
        if not covered and record["kind"] == "step":
            covered = positive(record.get("seconds"))
            self.unnamed += covered
        if covered:
            gap = sum(self.waiting) - covered
            self.waiting = []
            if gap <= FRESH_S:
                self.missing += gap
            else:
                self.pauses += gap

    def _unexplained(self) -> tuple[float, float]:
        """Seconds since the last start that are in no phase, and those after the last phase in which it paused."""
        missing = self.missing + sum(gap for gap in self.waiting if gap <= FRESH_S)
        return max(0.0, missing), sum(gap for gap in self.waiting if gap > FRESH_S)

    @property
    def training(self) -> float:
        """Seconds so far, without pauses."""
        named = self.starting + sum(self.phases.values()) + self.regrouping
        return named + self.unnamed + self.missing_before + self._unexplained()[0]

    def account(self) -> Account:
        """The account so far."""
        missing, paused = self._unexplained()
        unaccounted = self.missing_before + missing + self.unnamed
        return Account(dict(self.phases), self.starting, unaccounted, self.regrouping, self.pauses + paused)


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


def phases_of(record: Record) -> dict[str, float]:
    """What a step's or an end's time was spent on, as far as it is recorded; records are untrusted input."""
    phases = record.get("phases")
    if record["kind"] not in ("step", "end") or not isinstance(phases, dict):
        return {}
    return {phase: positive(phases[phase]) for phase in PHASES if phase in phases}


def positive(value: Any) -> float:
    """A number of seconds from a record; 0 if it is not a number."""
    return max(0.0, float(value)) if is_number(value) else 0.0
