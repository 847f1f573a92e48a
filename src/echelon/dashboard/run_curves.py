"""What a page shows of one run, kept up to date from its records: curves, events, samples and the facts of the list.

Records are read once, as they come. What is kept is bounded, however long the run: curves are thinned, and of events
and samples only so many stay.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from echelon.dashboard.thinning import AXES, VALUE, Rows, ThinnedCurve
from echelon.explain.accounting import Ledger
from echelon.explain.host_samples import host_state
from echelon.monitor.means import smoothing_width, warm_up_steps
from echelon.monitor.meter import PHASES
from echelon.monitor.provenance import launch_times
from echelon.monitor.records import Record, RecordReader, TrainingFilter, is_number
from echelon.recipe.tasks import all_scores, less_is_better
from echelon.runfolder import RunFolder

_STEP_VALUES = ("targets", "loss", "learning_rate", "gradient_norm", "received", "sent", "seconds")
_COLUMNS = (*_STEP_VALUES, *(f"phase/{phase}" for phase in PHASES))
_MOST_EVENTS = 300
_MOST_SOURCES = 6
_MOST_SAMPLES = 40
"""Of a source; every second one goes if there are more."""
_MOST_TEXT = 2000
_MOST_STATES = 200
_NAN = math.nan


@dataclass
class RunProgress:
    """Where a run's first worker stands, on each axis."""

    began: float | None = None
    """When the run was launched first."""
    written: float = 0.0
    """When the last record was written."""
    step: int = 0
    seen: float = 0.0
    host_seconds: float = 0.0
    """For charts: it never falls."""
    hosts: int = 1
    workers: int = 1
    layout_step: int = 0
    """The step at which workers, hosts or the exchange last changed."""
    ledger: Ledger = field(default_factory=Ledger)
    rented: float = 0.0
    """Host seconds of the launches before the current one."""
    launch_hosts: int = 1
    """Those that stand by, or were lost, too: all are paid for to the end of the launch."""
    launch_began: float = 0.0
    """The seconds trained before it."""

    def advance(self, record: Record, launches: Sequence[float]) -> None:
        """Count the time up to a record, as a report does."""
        if record["kind"] == "start":
            if self.ledger.is_new_launch(record, launches):
                self.rented = self.total_host_seconds()
                self.launch_hosts, self.launch_began = 1, self.ledger.training
            told = [record.get(key) or 1 for key in ("hosts", "hosts_given")]
            self.launch_hosts = max(self.launch_hosts, *told)
        self.ledger.add(record, launches)
        self.host_seconds = max(self.host_seconds, self.total_host_seconds())
        now = record.get("time")
        if not is_number(now):
            return
        if self.began is None:
            self.began = max((launch for launch in launches if launch <= now), default=now)
        self.written = max(now, self.written)

    def total_host_seconds(self) -> float:
        """Of all hosts together, without pauses."""
        return self.rented + self.launch_hosts * (self.ledger.training - self.launch_began)

    @property
    def axes(self) -> tuple[float, float, float, float]:
        return self.step, self.written - (self.began or 0.0), self.seen, self.host_seconds


class _StepTable:
    """Steps in a row, until they are added to the curves together."""

    def __init__(self) -> None:
        self.axes: list[tuple[float, ...]] = []
        self.values: list[tuple[Any, ...]] = []

    def add(self, record: Record, run: RunCurves) -> None:
        if not isinstance(record.get("step"), int) or not is_number(record.get("seconds")):
            return
        progress = run.progress
        if (
            run.states and run.states[-1]["kind"] == "start"
        ):  # that steps followed tells what scores before it are of
            run.states.append({key: record.get(key) for key in ("kind", "time", "step")})
        progress.advance(record, run.launches)
        progress.step = record["step"]
        progress.seen += record.get("targets") or 0
        self.axes.append(progress.axes)
        phases = record.get("phases", {})
        self.values.append((*map(record.get, _STEP_VALUES), *map(phases.get, PHASES)))


@dataclass
class RunCurves:
    """One run, as far as its records have been read."""

    run: RunFolder
    curves: dict[str, ThinnedCurve] = field(default_factory=dict)
    progress: RunProgress = field(default_factory=RunProgress)
    states: deque[Record] = field(default_factory=lambda: deque(maxlen=_MOST_STATES))
    """Starts, each with its first step, ends, failures and scores: a run's state and test score are found in them."""
    events: deque[Record] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    checkpoints: deque[Record] = field(default_factory=lambda: deque(maxlen=_MOST_EVENTS))
    samples: dict[str, list[Record]] = field(default_factory=dict)
    hosts: dict[str, Record] = field(default_factory=dict)
    """Each host's last sample."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of the first worker."""
    readers: dict[str, RecordReader] = field(default_factory=dict)
    """By the file's name."""
    chosen: TrainingFilter = field(default_factory=TrainingFilter)
    launches: list[float] = field(default_factory=list)

    def update(self) -> bool:
        """Read what is new; whether there was anything."""
        before = self.bytes_read
        self.launches = launch_times(self.run)
        self._read_first()
        told: list[Record] = []
        for path in sorted(self.run.records.glob("*.jsonl")):
            if path != self.run.worker_records(0):
                told += self._read_other(path)
        self._take_host_samples(told)
        return self.bytes_read != before

    def is_outdated(self) -> bool:
        """Whether a file is shorter than what was read of it: it is another one now."""
        return any(reader.is_behind() for reader in self.readers.values())

    @property
    def bytes_read(self) -> int:
        return sum(reader.position for reader in self.readers.values())

    def _reader(self, path: Path) -> RecordReader:
        return self.readers.setdefault(path.name, RecordReader(path))

    def _read_first(self) -> None:
        samples: list[Record] = []
        for batch in self._reader(self.run.worker_records(0)).read_batches():
            steps = _StepTable()
            for record in batch:
                for kept in self.chosen.take(record):
                    if kept["kind"] == "step":
                        steps.add(kept, self)
                    elif kept["kind"] == "host":
                        self.progress.advance(kept, self.launches)
                        samples.append(kept)
                    else:
                        if kept["kind"] == "start":
                            self._take_steps(steps)
                            steps = _StepTable()
                        self._take(kept)
            self._take_steps(steps)
        self._take_host_samples(samples)

    def _read_other(self, path: Path) -> list[Record]:
        """Samples of hosts and events of other workers, of agents and of the launcher."""
        found: list[Record] = []
        reader = self._reader(path)
        is_worker = path.name.startswith("worker-")
        for batch in reader.read_batches(skip_steps=is_worker):
            for record in batch:
                if record["kind"] == "host":
                    found.append(record)
                elif record["kind"] in ("event", "failure"):
                    self._note(record, str(record.get("message", "")))
        return found

    def _take_steps(self, steps: _StepTable) -> None:
        if not steps.axes:
            return
        table = np.array(steps.values, dtype=float)  # None becomes NaN
        columns = dict(zip(_COLUMNS, table.T, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            columns["speed"] = columns.pop("targets") / columns["seconds"]
        for name, values in columns.items():
            self._extend(name, steps.axes, values)
        for phase in PHASES:
            spent = float(np.nansum(columns[f"phase/{phase}"]))
            self.phases[phase] = self.phases.get(phase, 0.0) + spent

    def _extend(self, name: str, axes: Sequence[tuple[float, ...]], values: Sequence[float] | Rows) -> None:
        if not axes:
            return
        rows = np.column_stack([np.asarray(axes, dtype=float), np.asarray(values, dtype=float)])
        if name in self.curves or np.isfinite(rows[:, VALUE]).any():
            self.curves.setdefault(name, ThinnedCurve()).extend(rows)

    def _take(self, record: Record) -> None:
        """A record of the first worker that is no step."""
        self.progress.advance(record, self.launches)
        match record["kind"]:
            case "start":
                self._start(record)
                self.states.append(_clipped(record))
            case "end" | "score":
                self.states.append(_clipped(record))
                if record["kind"] == "end":
                    self._note(record, str(record.get("outcome", "finished")))
            case "event" | "failure":
                if record["kind"] == "failure":
                    self.states.append(_clipped(record))
                self._note(record, str(record.get("message", "")))
            case "valid":
                self._score(record)
            case "sample":
                self._sample(record)
            case "checkpoint":
                self.checkpoints.append({**self._at(record), "kind": "checkpoint", "text": "checkpoint"})

    def _start(self, record: Record) -> None:
        step, progress = record.get("step") or 0, self.progress
        is_again = len(self.states) > 0
        if step < progress.step:
            progress.seen = float(self._axes_at("step", [step])[0, AXES.index("seen")])
            for curve in self.curves.values():
                curve.go_back(step)
        workers, hosts = record.get("workers", 1), record.get("hosts", 1)
        if (workers, hosts) != (progress.workers, progress.hosts):
            progress.layout_step = step
        progress.step, progress.workers, progress.hosts = step, workers, max(1, hosts)
        words = f"{'restart' if is_again else 'start'} with {workers} worker{'s' * (workers != 1)}"
        self._note({**record, "kind": "start"}, words)

    def _score(self, record: Record) -> None:
        at = dict(zip(AXES, self.progress.axes, strict=True))
        at["step"] = record.get("step") or self.progress.step
        for name in ("loss", "perplexity", *(score.key for score in all_scores())):
            value = record.get(name)
            if is_number(value):
                self._extend(f"valid/{name}", [tuple(at.values())], [value])

    def _sample(self, record: Record) -> None:
        source = str(record.get("source", ""))[:_MOST_TEXT]
        if source not in self.samples and len(self.samples) >= _MOST_SOURCES:
            return
        kept = self.samples.setdefault(source, [])
        texts = {name: str(record.get(name, ""))[:_MOST_TEXT] for name in ("output", "reference")}
        kept.append({"step": record.get("step") or 0, **texts})
        if len(kept) > _MOST_SAMPLES:
            del kept[1::2]

    def _note(self, record: Record, text: str) -> None:
        if text:
            self.events.append({**self._at(record), "kind": record["kind"], "text": text[:_MOST_TEXT]})

    def _at(self, record: Record) -> Record:
        """When something happened, on each axis: as far as the first worker has been read."""
        _, seconds, seen, host_seconds = self.progress.axes
        now, began = record.get("time"), self.progress.began
        seconds = max(0.0, now - began) if is_number(now) and began is not None else seconds
        step = record.get("step")
        step = self.progress.step if step is None else step
        return {"step": step, "seconds": seconds, "seen": seen, "host_seconds": host_seconds, "time": now}

    def _take_host_samples(self, samples: Iterable[Record]) -> None:
        by_host: dict[str, list[Record]] = {}
        for sample in samples:
            if is_number(sample.get("time")) and self.progress.began is not None:
                by_host.setdefault(str(sample.get("host", ""))[:80], []).append(sample)
        for host, own in by_host.items():
            self.hosts[host] = own[-1]
            axes = self._axes_at("seconds", [sample["time"] - (self.progress.began or 0.0) for sample in own])
            loads = [host_state(sample) for sample in own]
            named = {
                "processors": [_NAN if load.processors is None else 100 * load.processors for load in loads],
                "gpus": [_NAN if load.gpus_busy is None else 100 * load.gpus_busy for load in loads],
                "memory": [_NAN if load.memory is None else load.memory[0] for load in loads],
                "network": [(load.received + load.sent) / 2 if load.card else _NAN for load in loads],
            }
            for name, values in named.items():
                self._extend(f"{name}/{host}", [tuple(row) for row in axes], values)

    def _axes_at(self, axis: str, values: Sequence[float]) -> Rows:
        """The places on all axes that belong to places on one of them."""
        known = self.curves["seconds"].means()[:, :VALUE] if "seconds" in self.curves else None
        if known is None or not len(known):
            known = np.array([self.progress.axes])
        known = np.concatenate([np.zeros((1, VALUE)), known])
        number = AXES.index(axis)
        columns = [np.interp(values, known[:, number], known[:, other]) for other in range(VALUE)]
        columns[number] = np.asarray(values, dtype=float)
        return np.column_stack(columns)

    @property
    def best(self) -> dict[str, tuple[float, int]]:
        """The best validation score by metric, and its step."""
        found = {}
        for key in (score.key for score in all_scores()):
            curve = self.curves.get(f"valid/{key}")
            if curve is not None and len(points := curve.points()):
                choose = np.argmin if less_is_better(key) else np.argmax
                point = points[choose(points[:, VALUE])]
                found[key] = float(point[VALUE]), int(point[0])
        return found

    def last_loss(self) -> float | None:
        """The mean of the last twentieth of the steps, as everywhere."""
        curve = self.curves.get("loss")
        if curve is None or not len(means := curve.means()):
            return None
        return float(means[-min(len(means), smoothing_width(len(means))) :, VALUE].mean())

    def targets_per_second(self) -> float | None:
        """Targets over seconds of the steps with the current workers, without the first few."""
        curve = self.curves.get("seconds")
        if curve is None or not len(means := curve.means()):
            return None
        before = int(np.searchsorted(means[:, 0], self.progress.layout_step, side="right"))
        first = before + warm_up_steps(len(means) - before)
        kept = means[first:]
        seen = kept[-1, 2] - (means[first - 1, 2] if first else 0.0) if len(kept) else 0.0
        # The last bucket may not be full yet.
        points = np.full(len(kept), float(curve.bucket_points))
        points[-1:] = curve.last_points
        seconds = float(kept[:, VALUE] @ points)
        return float(seen) / seconds if seconds > 0 else None


def _clipped(record: Record) -> Record:
    return {
        name: value[:_MOST_TEXT] if isinstance(value, str) else value
        for name, value in record.items()
        if isinstance(value, str | int | float | None)
    }
