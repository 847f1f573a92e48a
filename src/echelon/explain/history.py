"""What the records of a run say, put in order: steps, where their time went, scores, hosts, what happened."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from echelon.explain.curves import smooth
from echelon.monitor.meter import PHASES
from echelon.monitor.records import RecordReader, is_number
from echelon.monitor.run_state import read_state
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe, TranslationRecipe
from echelon.runfolder import RunFolder

_WARM_UP = 0.05
"""Share of the steps at the beginning that say little about the others: caches fill, libraries load."""
Record = dict[str, Any]


@dataclass(frozen=True)
class Worker:
    """One worker's steps, each as it was made last, up to where it stands."""

    rank: int
    host: str
    facts: Record
    """Its last `start` record."""
    steps: list[Record]

    @property
    def is_server(self) -> bool:
        return self.facts.get("role") == "server"

    def typical(self) -> list[Record]:
        """The steps without the first few."""
        return self.steps[math.ceil(_WARM_UP * len(self.steps)) :] if len(self.steps) > 20 else self.steps

    def mean_phase(self, phase: str) -> float:
        """Mean seconds of a phase in a step."""
        steps = self.typical()
        return sum(step["phases"].get(phase, 0.0) for step in steps) / len(steps) if steps else 0.0

    def mean_targets(self) -> float:
        """Targets of a step."""
        targets = [step["targets"] for step in self.typical() if "targets" in step]
        return sum(targets) / len(targets) if targets else 0.0

    def targets_per_second(self) -> float:
        """Of its own steps and the time between them, without scoring and saving."""
        pace = sum(self.mean_phase(phase) for phase in PHASES if phase not in ("evaluation", "checkpoint"))
        return self.mean_targets() / pace if pace else 0.0

    def busy_seconds(self) -> float:
        """Mean seconds of a step in which it does not wait for others."""
        return sum(self.mean_phase(phase) for phase in ("data", "forward", "backward", "optimiser"))


@dataclass(frozen=True)
class History:
    """A run, as its records tell it."""

    run: RunFolder
    recipe: Recipe
    workers: list[Worker]
    """Those that train."""
    totals: dict[str, float]
    """Seconds of the first worker by phase, from its first start to its last record, restarts included."""
    num_made: int
    """Steps of the run while the first worker trained, those that were made again counted each time."""
    seconds: float
    """From the first record to the last, by the clock of each start."""
    pause_seconds: float
    """Of those, how many lie between a stop and the next start, when nobody trained."""
    starts: list[Record]
    """Of the first worker: one for every time that the run was started."""
    valid: list[Record]
    samples: list[Record]
    checkpoints: list[Record]
    events: list[Record]
    """Of launcher, agents and workers, by time."""
    host_samples: list[Record]
    link: Record | None
    """What a test of the network measured before training."""
    outcome: str
    servers: list[Worker] = field(default_factory=list)
    """Of a run with parameter servers: those that keep the weights."""

    @property
    def first(self) -> Worker:
        return self.workers[0]

    @property
    def steps(self) -> list[Record]:
        """Of the first worker."""
        return self.first.steps

    @property
    def facts(self) -> Record:
        return self.first.facts

    @property
    def size(self) -> int:
        """Workers that train together."""
        return int(self.facts.get("workers", len(self.workers)))

    @property
    def num_hosts(self) -> int:
        return max(int(self.facts.get("hosts", 1)), len({worker.host for worker in self.workers}))

    @property
    def hosts_given(self) -> int:
        """Hosts that were there for the run, also those that stood by."""
        return max(self.num_hosts, int(self.facts.get("hosts_given", 1)))

    @property
    def planned_steps(self) -> int:
        return max(1, int(self.facts.get("steps", len(self.steps))))

    @property
    def last_step(self) -> int:
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def training_seconds(self) -> float:
        """From the first record to the last, without pauses."""
        return self.seconds - self.pause_seconds

    @property
    def seconds_left(self) -> float | None:
        """Until the planned end, at the pace so far; None where it does not train, or has made no step."""
        if self.outcome != "training" or not self.steps:
            return None
        pace = (sum(self.totals.values()) or self.training_seconds) / self.num_made
        return (self.planned_steps - self.last_step) * pace

    @property
    def unit(self) -> str:
        """What a step's targets are: target tokens, or images."""
        unit = str(self.facts.get("unit", "tokens"))
        return "target tokens" if unit == "tokens" else unit

    @property
    def metric(self) -> tuple[str, str]:
        """The score that people ask for first: its name, and its key in records."""
        return ("BLEU", "bleu") if isinstance(self.recipe, TranslationRecipe) else ("top-1", "top1")

    def best_score(self) -> float | None:
        """The best of that score on the validation set."""
        key = self.metric[1]
        return max((record[key] for record in self.valid if record.get(key) is not None), default=None)

    def step_seconds(self) -> list[float]:
        """Seconds of every step but the first few, without scoring and saving between them."""
        return [float(step["seconds"]) for step in self.first.typical()]

    @property
    def seconds_per_step(self) -> float:
        seconds = self.step_seconds()
        return sum(seconds) / len(seconds) if seconds else 0.0

    @property
    def targets_per_step(self) -> float:
        """The global batch."""
        return self.first.mean_targets()

    @property
    def targets_per_second(self) -> float:
        """What all workers do together; without synchrony each takes whole steps, side by side with the others."""
        if self.recipe.train.exchange == "parameter_server" and not self.recipe.exchange.synchronous:
            return sum(worker.targets_per_second() for worker in self.workers)
        pace = self.seconds_per_step
        return self.targets_per_step / pace if pace else 0.0

    def share_of(self, phase: str) -> float:
        """Share of a phase, of those between steps too, in the run's time."""
        total = sum(self.totals.values())
        return self.totals.get(phase, 0.0) / total if total else 0.0

    @property
    def last_loss(self) -> float | None:
        """Training loss at the end, smoothed."""
        _, losses = self.losses()
        return float(smooth(losses)[-1]) if losses else None

    def percentile(self, share: float) -> float:
        seconds = self.step_seconds()
        return float(np.quantile(seconds, share)) if seconds else 0.0

    def losses(self) -> tuple[list[float], list[float]]:
        """Steps and training losses: of all workers, which a server sees where there is one."""
        kept = [(step["step"], step["loss"]) for step in self._told_steps if is_number(step.get("loss"))]
        return [float(step) for step, _ in kept], [float(loss) for _, loss in kept]

    @property
    def num_lost(self) -> int:
        """Steps at the end whose loss is not finite, which records have as null."""
        is_lost = ("loss" in step and not is_number(step["loss"]) for step in reversed(self._told_steps))
        return sum(1 for _ in itertools.takewhile(bool, is_lost))

    @property
    def _told_steps(self) -> list[Record]:
        return self.servers[0].steps if self.servers else self.steps


class RecordStore:
    """Records of growing files: each line is read once."""

    def __init__(self) -> None:
        self._readers: dict[Path, RecordReader] = {}
        self._records: dict[Path, list[Record]] = {}

    def read(self, path: Path) -> list[Record]:
        """All records of a file so far."""
        reader = self._readers.setdefault(path, RecordReader(path))
        records = self._records.setdefault(path, [])
        records += reader.read()
        return records


def read_history(run: RunFolder, store: RecordStore | None = None) -> History:
    """Everything a run's records say. A run without a step has one worker without steps."""
    run.require()
    read = (store or RecordStore()).read
    files = sorted(run.records.glob("worker-*.jsonl"), key=_rank_of)
    by_rank = {_rank_of(file): read(file) for file in files}
    first = by_rank.get(0, [])
    starts = [record for record in first if record["kind"] == "start"]
    size = int(starts[-1].get("workers", 1)) if starts else 1
    everyone = [_worker(rank, records) for rank, records in by_rank.items() if rank < size]
    workers = [worker for worker in everyone if not worker.is_server]
    told = [record for file in _tellers(run) for record in read(file)]
    every = [record for records in by_rank.values() for record in records]
    training, pauses = _training_and_pauses(first)
    links = [record for record in told if record["kind"] == "link"]
    return History(
        run=run,
        recipe=load_recipe(run.recipe),
        workers=workers or [Worker(0, "", {}, [])],
        totals=_totals(first),
        num_made=sum(count for _, count in steps_made(first)),
        seconds=training + pauses,
        pause_seconds=pauses,
        starts=starts,
        valid=_latest_by_step(record for record in first if record["kind"] == "valid"),
        samples=[record for record in first if record["kind"] == "sample"],
        checkpoints=[record for record in every if record["kind"] == "checkpoint"],
        events=_by_time(r for r in (*told, *first) if r["kind"] in ("event", "failure") and r.get("message")),
        host_samples=_by_time(record for record in every if record["kind"] == "host"),
        link=links[-1] if links else None,
        outcome=read_state(run, first).name,
        servers=[worker for worker in everyone if worker.is_server],
    )


def _rank_of(file: Path) -> int:
    match = re.search(r"(\d+)\.jsonl$", file.name)
    return int(match[1]) if match else -1


def _tellers(run: RunFolder) -> list[Path]:
    return [run.launcher_records, *sorted(run.records.glob("agent-*.jsonl"))]


def _worker(rank: int, records: Sequence[Record]) -> Worker:
    starts = [record for record in records if record["kind"] == "start"]
    facts = starts[-1] if starts else {}
    return Worker(rank, str(facts.get("host", "")), facts, _standing_steps(records))


def _standing_steps(records: Sequence[Record]) -> list[Record]:
    """The steps that count, in order: a start goes back behind those made after its checkpoint."""
    steps: list[Record] = []
    for record in records:
        if record["kind"] == "start" and isinstance(record.get("step"), int):
            steps = [step for step in steps if step["step"] <= record["step"]]
        elif _is_step(record):
            steps.append(record)
    return _latest_by_step(steps)


def steps_made(records: Sequence[Record]) -> Iterator[tuple[Record, int]]:
    """A worker's steps, each with the number of steps that the run has made since the one before.

    That is 1, but where workers take whole steps side by side: each then records only its own.
    """
    stands_at: int | None = None
    for record in records:
        if record["kind"] == "start":
            stands_at = record.get("step")
        elif _is_step(record):
            has_gone_back = stands_at is None or record["step"] <= stands_at
            yield record, 1 if has_gone_back else record["step"] - stands_at
            stands_at = record["step"]


def _is_step(record: Record) -> bool:
    """Whether a record is a step with everything that is counted on; what others write may be anything."""
    phases = record.get("phases", {})
    return (
        record["kind"] == "step"
        and isinstance(record.get("step"), int)
        and is_number(record.get("seconds"))
        and isinstance(phases, dict)
        and all(is_number(value) for value in phases.values())
    )


def _latest_by_step(records: Any) -> list[Record]:
    """One record a step, in order: a step that was made again counts as it was made last."""
    latest: dict[int, Record] = {}
    for record in records:
        latest[record.get("step", 0)] = {"phases": {}, **record}
    return [latest[step] for step in sorted(latest)]


def _by_time(records: Any) -> list[Record]:
    return sorted(records, key=lambda record: float(record.get("time") or 0.0))


def _totals(records: Sequence[Record]) -> dict[str, float]:
    totals: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    for record in records:
        if record["kind"] == "end" or _is_step(record):
            for phase, seconds in record.get("phases", {}).items():
                if phase in totals and is_number(seconds):
                    totals[phase] += seconds
    return totals


def _training_and_pauses(records: Sequence[Record]) -> tuple[float, float]:
    """Seconds of training, loading anew included, and those between a stop and the moment when the next start loaded.

    Clocks may be behind where a run goes on, or be set back: from one record to the next, no time is taken back.
    """
    timed = [record for record in records if is_number(record.get("time"))]
    training, pauses = [0.0], [0.0]
    for before, record in itertools.pairwise(timed):
        passed = record["time"] - before["time"]
        if record["kind"] == "start":
            loading = float(record.get("setup_seconds") or 0.0)
            training.append(loading)
            pauses.append(max(0.0, passed - loading))
        else:
            training.append(max(0.0, passed))
    return math.fsum(training), math.fsum(pauses)
