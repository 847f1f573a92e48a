"""A run's records in order: steps, where their time went, scores, hosts and events."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from echelon.explain.accounting import Account, account_for
from echelon.explain.curves import smooth
from echelon.explain.stretches import (
    Rental,
    Restarts,
    Stretch,
    find_rentals,
    find_restarts,
    find_stretches,
)
from echelon.monitor.means import warm_up_steps
from echelon.monitor.meter import PHASES
from echelon.monitor.provenance import launch_times
from echelon.monitor.records import (
    COMPLETE,
    Record,
    RecordReader,
    is_number,
    standing_records,
    training_records,
)
from echelon.monitor.run_state import read_state
from echelon.monitor.scores import FinalScore, final_score
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import RecipeDeclaration, find_task, less_is_better
from echelon.runfolder import RunFolder

TWICE = 2.0
_FARTHEST = 4.0
"""Predictions were checked on curves of which a quarter was known (tests/explain/test_real_curves.py)."""


@dataclass(frozen=True)
class Worker:
    """One worker's steps up to now; a step that was repeated counts as it was made last."""

    rank: int
    host: str
    facts: Record
    """Its last `start` record; `peak_flops` is the best that was measured, at this and other starts and ends."""
    steps: list[Record]
    layout_step: int = 0
    """The step after which nobody joined or left for good: the same workers, hosts and exchange ever since."""

    @property
    def is_server(self) -> bool:
        return self.facts.get("role") == "server"

    def typical(self) -> list[Record]:
        """The steps with the current workers, without the first few: those of other numbers of workers say nothing
        about these."""
        steps = [step for step in self.steps if step["step"] > self.layout_step]
        return steps[warm_up_steps(len(steps)) :]

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
    """A run's history, from its records."""

    run: RunFolder
    recipe: Recipe
    workers: list[Worker]
    """Those that train."""
    account: Account
    """Where the first worker's time went, restarts included."""
    num_made: int
    """Steps of the run while the first worker trained, those that were made again counted each time."""
    starts: list[Record]
    """Of the first worker: one for every time that the run was started."""
    stretches: list[Stretch]
    """The run's steps, cut where workers or hosts changed."""
    rentals: list[Rental]
    """Of each launch."""
    restarts: Restarts
    valid: list[Record]
    samples: list[Record]
    checkpoints: list[Record]
    events: list[Record]
    """Of launcher, agents and workers, by time."""
    host_samples: list[Record]
    link: Record | None
    """What a test of the network measured before training."""
    outcome: str
    test: FinalScore | None = None
    """The score on the test set."""
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
    def earlier_sizes(self) -> list[tuple[int, int]]:
        """Before the last change of their number: how many workers trained, and from which step."""
        told = [(start["workers"], start.get("step") or 0) for start in self.starts if start.get("workers")]
        return [next(group) for _, group in itertools.groupby(told, key=lambda each: each[0])][:-1]

    @property
    def num_hosts(self) -> int:
        return max(int(self.facts.get("hosts", 1)), len({worker.host for worker in self.workers}))

    @property
    def hosts_given(self) -> int:
        """Most hosts of a launch, including those that stood by or were lost."""
        return max([self.num_hosts, *(rental.hosts for rental in self.rentals)])

    @property
    def host_seconds(self) -> float:
        """Of all hosts together, without pauses."""
        return sum(rental.hosts * rental.seconds for rental in self.rentals)

    @property
    def planned_steps(self) -> int:
        return max(1, int(self.facts.get("steps", len(self.steps))))

    @property
    def last_step(self) -> int:
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def is_complete(self) -> bool:
        """Whether it came to its own end."""
        return self.outcome in COMPLETE

    @property
    def ahead(self) -> float:
        """How far the report predicts, in multiples of the steps so far: to the planned end if that can be predicted,
        otherwise twice as far."""
        if self.is_complete or not self.last_step:
            return TWICE
        to_the_end = self.planned_steps / self.last_step
        return to_the_end if 1 < to_the_end <= _FARTHEST else TWICE

    @property
    def totals(self) -> dict[str, float]:
        """Seconds of the first worker by phase."""
        return self.account.phases

    @property
    def seconds(self) -> float:
        """From the first start to the last record."""
        return self.training_seconds + self.pause_seconds

    @property
    def pause_seconds(self) -> float:
        """Seconds in which nothing trained."""
        return self.account.pauses

    @property
    def training_seconds(self) -> float:
        """Starting, steps and whatever is between them; no pauses."""
        return self.account.training

    @property
    def seconds_left(self) -> float | None:
        """Until the planned end, at the pace so far; None if it is not training or has made no step."""
        if self.outcome != "training" or not self.steps:
            return None
        return max(0, self.planned_steps - self.last_step) * self.wall_pace

    @property
    def loop_seconds(self) -> float:
        """Steps, and scoring and saving between and after them: the run without starting."""
        return self.training_seconds - self.account.starting

    @property
    def wall_pace(self) -> float:
        """Seconds for each step, everything between steps included: as so far, or in proportion to what a step takes
        since workers or hosts changed."""
        mean = (sum(self.totals.values()) or self.training_seconds) / max(1, self.num_made)
        whole = sum(float(step["seconds"]) for step in self.steps)
        if not self.first.layout_step or not whole or not self.seconds_per_step:
            return mean
        return mean * self.seconds_per_step * len(self.steps) / whole

    @property
    def unit(self) -> str:
        """What a step's targets are: target tokens, or images."""
        return self._task.targets

    @property
    def metric(self) -> tuple[str, str]:
        """The main score: its name, and its key in records."""
        score = self._task.scores[0]
        return score.name, score.key

    @property
    def _task(self) -> RecipeDeclaration:
        task: RecipeDeclaration = find_task(self.recipe.task)
        return task

    def best_validation(self) -> Record | None:
        """The scoring of the validation set with the best of that metric: its value and its step."""
        key = self.metric[1]
        scored = [record for record in self.valid if is_number(record.get(key))]
        choose = min if less_is_better(key) else max
        best = choose(scored, key=lambda record: float(record[key]), default=None)
        return None if best is None else {"metric": key, "best": best[key], "step": best.get("step", 0)}

    def best_score(self) -> float | None:
        """The best of that metric on the validation set."""
        best = self.best_validation()
        return None if best is None else float(best["best"])

    def step_seconds(self) -> list[float]:
        """Seconds of every step with the current workers but the first few, without scoring and saving between them."""
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
        """Targets per second of all workers; asynchronous workers each take whole steps."""
        if self._is_asynchronous:
            return sum(worker.targets_per_second() for worker in self.workers)
        pace = self.seconds_per_step
        return self.targets_per_step / pace if pace else 0.0

    @property
    def pace(self) -> float:
        """Seconds per step of the run: less than a worker's step takes if workers step independently."""
        speed = self.targets_per_second
        return self.targets_per_step / speed if self._is_asynchronous and speed else self.seconds_per_step

    @property
    def _is_asynchronous(self) -> bool:
        return self.recipe.train.exchange == "parameter_server" and not self.recipe.exchange.synchronous

    def share_of(self, part: str) -> float:
        """Share of a phase, of starting or of unaccounted time in the run's; all of them sum to 1."""
        total = self.training_seconds
        return self.account.parts().get(part, 0.0) / total if total else 0.0

    @property
    def last_loss(self) -> float | None:
        """Training loss at the end, smoothed."""
        _, losses = self.losses()
        return float(smooth(losses)[-1]) if losses else None

    def percentile(self, share: float) -> float:
        seconds = self.step_seconds()
        return float(np.quantile(seconds, share)) if seconds else 0.0

    def losses(self) -> tuple[list[float], list[float]]:
        """Steps and training losses over all workers, from the parameter server if there is one."""
        kept = [(step["step"], step["loss"]) for step in self._told_steps if is_number(step.get("loss"))]
        return [float(step) for step, _ in kept], [float(loss) for _, loss in kept]

    def rates(self) -> list[tuple[int, float]]:
        """Steps and the learning rates that were used in them."""
        return [
            (step["step"], float(step["learning_rate"]))
            for step in self.steps
            if is_number(step.get("learning_rate"))
        ]

    @property
    def num_lost(self) -> int:
        """Trailing steps whose loss is not finite (null in records)."""
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
        for batch in reader.read_batches():
            records += batch
        return records

    def notes(self) -> Iterator[Record]:
        """An event for each file with ignored records."""
        for path, reader in self._readers.items():
            if reader.num_ignored:
                message = (
                    f"{path.name}: records ignored because their values cannot be true: {reader.num_ignored}"
                )
                yield {"kind": "event", "message": message}


def read_history(run: RunFolder, store: RecordStore | None = None) -> History:
    """Everything a run's records say. A run without a step has one worker without steps."""
    run.require()
    store = store or RecordStore()
    read = store.read
    files = sorted(run.records.glob("worker-*.jsonl"), key=_rank_of)
    by_rank = {rank: _trained(read(file), rank) for file in files for rank in [_rank_of(file)]}
    first = by_rank.get(0, [])
    starts = [record for record in first if record["kind"] == "start"]
    size = int(starts[-1].get("workers", 1)) if starts else 1
    everyone = [_worker(rank, records) for rank, records in by_rank.items() if rank < size]
    workers = [worker for worker in everyone if not worker.is_server]
    told = [record for file in _tellers(run) for record in read(file)]
    every = [record for records in by_rank.values() for record in records]
    launches = launch_times(run)
    links = [record for record in told if record["kind"] == "link"]
    return History(
        run=run,
        recipe=load_recipe(run.recipe),
        workers=workers or [Worker(0, "", {}, [])],
        account=account_for(first, launches),
        num_made=sum(count for _, count in steps_made(first)),
        starts=starts,
        stretches=find_stretches(by_rank),
        rentals=find_rentals(by_rank, launches),
        restarts=find_restarts(first),
        valid=_latest_by_step(standing_records(first, lambda record: record["kind"] == "valid")),
        samples=[record for record in first if record["kind"] == "sample"],
        checkpoints=[record for record in every if record["kind"] == "checkpoint"],
        events=_by_time(
            r
            for r in (*told, *first, *store.notes())
            if r["kind"] in ("event", "failure") and r.get("message")
        ),
        host_samples=_by_time(record for record in every if record["kind"] == "host"),
        link=links[-1] if links else None,
        outcome=read_state(run, first).name,
        test=final_score(run, first),
        servers=[worker for worker in everyone if worker.is_server],
    )


def _trained(records: Sequence[Record], rank: int) -> list[Record]:
    """A worker's training records; none for an extra worker that only scored the run again."""
    start = next((record for record in records if record["kind"] == "start"), {})
    joined_late = bool(start.get("steps")) and (start.get("step") or 0) >= start["steps"]
    return training_records(records, is_over=rank > 0 and joined_late)


def _rank_of(file: Path) -> int:
    match = re.search(r"(\d+)\.jsonl$", file.name)
    return int(match[1]) if match else -1


def _tellers(run: RunFolder) -> list[Path]:
    return [run.launcher_records, *sorted(run.records.glob("agent-*.jsonl"))]


def _worker(rank: int, records: Sequence[Record]) -> Worker:
    starts = [record for record in records if record["kind"] == "start"]
    facts = starts[-1] if starts else {}
    if peaks := _peaks(records, facts):
        facts = facts | {"peak_flops": max(peaks)}
    return Worker(
        rank,
        str(facts.get("host", "")),
        facts,
        _latest_by_step(standing_records(records, _is_step)),
        _layout_step(starts),
    )


def _layout_step(starts: Sequence[Record]) -> int:
    """The step at which workers, hosts, the worker's own host or the exchange last changed; 0 if they never did."""
    found = 0
    for before, start in itertools.pairwise(starts):
        if any(before.get(key) != start.get(key) for key in ("workers", "hosts", "host", "exchange")):
            found = start["step"] if isinstance(start.get("step"), int) else found
    return found


def _peaks(records: Sequence[Record], facts: Record) -> list[float]:
    """What matrix products reached whenever that was measured with the same processors as at the last start."""
    same, peaks = ("host", "device", "threads", "workers"), []
    is_same = False
    for record in records:
        if record["kind"] == "start":
            is_same = all(record.get(key) == facts.get(key) for key in same)
        peak = record.get("peak_flops")
        if is_same and record["kind"] in ("start", "end") and isinstance(peak, int | float):
            peaks.append(float(peak))
    return peaks


def steps_made(records: Sequence[Record]) -> Iterator[tuple[Record, int]]:
    """A worker's steps, each with the number of steps that the run has made since the one before.

    That is 1, unless workers take whole steps side by side: each then records only its own.
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
    """Whether a record is a step with every required value; records are untrusted input."""
    phases = record.get("phases", {})
    return (
        record["kind"] == "step"
        and isinstance(record.get("step"), int)
        and is_number(record.get("seconds"))
        and isinstance(phases, dict)
        and all(is_number(value) for value in phases.values())
    )


def _latest_by_step(records: Any) -> list[Record]:
    """One record per step, in order; a step that was repeated counts as it was made last."""
    latest: dict[int, Record] = {}
    for record in records:
        latest[record.get("step", 0)] = {"phases": {}, **record}
    return [latest[step] for step in sorted(latest)]


def _by_time(records: Any) -> list[Record]:
    return sorted(records, key=lambda record: float(record.get("time") or 0.0))
