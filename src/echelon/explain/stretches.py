"""Which workers and hosts made which steps of a run, which steps had to be repeated, and which hosts were paid for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.explain.accounting import account_for, phases_of, positive, split_launches, split_sessions
from echelon.monitor.records import Record


@dataclass(frozen=True)
class Stretch:
    """Steps in a row that the same workers made on the same hosts, as the first worker recorded them."""

    hosts: tuple[str, ...]
    """In the order of their first workers."""
    workers: int
    steps: list[Record]

    @property
    def seconds_per_step(self) -> float:
        return sum(positive(step.get("seconds")) for step in self.steps) / len(self.steps)

    @property
    def communication_share(self) -> float:
        """Share of its phases in which the first worker waited for others and the network."""
        phases = [phases_of(step) for step in self.steps]
        total = sum(sum(each.values()) for each in phases)
        return sum(each.get("communication", 0.0) for each in phases) / total if total else 0.0

    @property
    def received_per_step(self) -> float | None:
        """Mean bytes; None if they were not counted."""
        received = [positive(step["received"]) for step in self.steps if "received" in step]
        return sum(received) / len(received) if received else None


@dataclass(frozen=True)
class Rental:
    """Hosts of one launch: each is paid for until its end, whether or not it was lost on the way."""

    hosts: int
    seconds: float


@dataclass(frozen=True)
class Restarts:
    """What restarts of the first worker took beside the waiting for them."""

    count: int
    starting_seconds: float
    repeated_steps: int
    """Made after the checkpoint that a restart went back to."""
    repeated_seconds: float
    noticing_seconds: float
    """From the last step of a worker that was killed to its end: it waited for what had been lost."""

    @property
    def seconds(self) -> float:
        return self.starting_seconds + self.repeated_seconds + self.noticing_seconds


def find_stretches(by_rank: Mapping[int, Sequence[Record]]) -> list[Stretch]:
    """A run's steps that stand, cut where workers or hosts changed."""
    kept: list[tuple[tuple[Any, ...], Record]] = []
    for session in split_sessions(by_rank.get(0, [])):
        start = session[0] if session[0]["kind"] == "start" else {}
        kept = [entry for entry in kept if entry[1]["step"] <= _step_of(start, default=entry[1]["step"])]
        hosts = _hosts_of(start, by_rank)
        layout = (hosts, int(start.get("workers", 1)), start.get("exchange"))
        kept += [(layout, record) for record in session if _is_step(record)]
    groups = itertools.groupby(kept, key=lambda entry: entry[0])
    return [Stretch(layout[0], layout[1], [step for _, step in entries]) for layout, entries in groups]


def find_rentals(by_rank: Mapping[int, Sequence[Record]], launches: Sequence[float]) -> list[Rental]:
    """The hosts of each launch; more than trained if some stood by."""
    found = []
    for sessions in split_launches(by_rank.get(0, []), launches):
        starts = [session[0] for session in sessions if session[0]["kind"] == "start"]
        names = {host for start in starts for host in _hosts_of(start, by_rank)}
        told = [int(start.get(key, 1)) for start in starts for key in ("hosts", "hosts_given")]
        records = [record for session in sessions for record in session]
        found.append(Rental(max([1, len(names), *told]), account_for(records, launches).training))
    return found


def find_restarts(records: Sequence[Record]) -> Restarts:
    """What a worker's restarts cost, from its records."""
    starts = [record for record in records if record["kind"] == "start"][1:]
    made: list[Record] = []
    repeated: list[Record] = []
    for record in records:
        if record["kind"] == "start":
            reached = _step_of(record, default=None)
            if reached is not None:
                repeated += [step for step in made if step["step"] > reached]
                made = [step for step in made if step["step"] <= reached]
        elif _is_step(record):
            made.append(record)
    return Restarts(
        count=len(starts),
        starting_seconds=sum(positive(start.get("setup_seconds")) for start in starts),
        repeated_steps=len(repeated),
        repeated_seconds=sum(
            sum(phases_of(step).values()) or positive(step.get("seconds")) for step in repeated
        ),
        noticing_seconds=sum(map(_seconds_after_last_step, split_sessions(records)[:-1])),
    )


def _seconds_after_last_step(session: Sequence[Record]) -> float:
    """Unaccounted time at the end of a session that was killed; 0 if it ended by itself."""
    last = next((index for index in reversed(range(len(session))) if _is_step(session[index])), None)
    if last is None or any(record["kind"] == "end" for record in session):
        return 0.0
    return account_for(session[last:]).unaccounted


def _hosts_of(start: Record, by_rank: Mapping[int, Sequence[Record]]) -> tuple[str, ...]:
    """The hosts of a group: each worker's start from the same step with as many workers, the nearest in time."""
    found: dict[str, None] = {}
    key = (start.get("step"), start.get("workers"))
    for rank in sorted(by_rank):
        same = [
            record
            for record in by_rank[rank]
            if record["kind"] == "start" and (record.get("step"), record.get("workers")) == key
        ]
        if start and same and rank < int(start.get("workers", rank + 1)):
            nearest = min(
                same, key=lambda record: abs(positive(record.get("time")) - positive(start.get("time")))
            )
            found[str(nearest.get("host", ""))] = None
    return tuple(found)


def _is_step(record: Record) -> bool:
    return record["kind"] == "step" and isinstance(record.get("step"), int)


def _step_of(start: Record, default: Any) -> Any:
    step = start.get("step")
    return step if isinstance(step, int) else default
