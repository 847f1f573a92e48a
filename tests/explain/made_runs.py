"""Run folders whose records say what a test wants, written through the real recorder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from echelon.monitor.records import RecordWriter
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder
from tests.sample_recipe import sample_recipe

COMPUTING = {
    "data": 0.002,
    "forward": 0.03,
    "backward": 0.06,
    "communication": 0.004,
    "optimiser": 0.003,
    "other": 0.001,
}


@dataclass(frozen=True)
class MadeRun:
    """What the records of a made run say."""

    steps: int = 60
    workers: int = 2
    hosts: int = 2
    hosts_given: int = 1
    phases: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By rank; workers that are not named do as COMPUTING says."""
    loss: Callable[[int], float] = lambda step: 2.0 + 6.0 * step**-0.5
    valid: Sequence[tuple[int, float, float]] = ((20, 3.9, 5.0), (40, 3.4, 9.0), (60, 3.1, 12.0))
    """Step, loss, BLEU."""
    received: int = 10_000_000
    line_bytes_per_s: float | None = 12.5e6
    parameters: int = 2_500_000
    exchange: str = "all_reduce"
    """As records name it."""
    cpu_share: float = 0.9
    """Of a step's time in which the worker has a processor."""
    slots: Mapping[int, float] = field(default_factory=dict)
    """Dealt by speed, by rank, on average; records of other exchanges do not say."""
    overrides: tuple[str, ...] = ()

    def write(self, folder: Path, *, is_ended: bool = True) -> RunFolder:
        run = RunFolder(folder)
        run.create()
        recipe = sample_recipe(f"train.steps={self.steps}", "name=made", *self.overrides)
        run.recipe.write_text(dump_recipe(recipe))
        if self.line_bytes_per_s:
            with contextlib.closing(RecordWriter(run.launcher_records)) as launcher:
                launcher.write("link", bytes_per_s=self.line_bytes_per_s, latency_s=1e-4)
        for rank in range(self.workers):
            self.write_worker(run, rank, is_ended=is_ended)
        return run

    def write_worker(self, run: RunFolder, rank: int, *, is_ended: bool = True) -> None:
        with contextlib.closing(RecordWriter(run.worker_records(rank))) as records:
            clock = Clock(time.time() - self.seconds(rank))
            with mock.patch("echelon.monitor.records.time.time", clock.now):
                self.write_start(records, rank)
                for step in range(1, self.steps + 1):
                    self.write_step(records, rank, step, clock)
                if is_ended:
                    records.write(
                        "end", step=self.steps, outcome="finished", seconds=1.0, phases={"other": 0.001}
                    )

    def seconds(self, rank: int) -> float:
        return self.steps * sum(self.phases.get(rank, COMPUTING).values())

    def write_start(self, records: RecordWriter, rank: int) -> None:
        records.write(
            "start",
            step=0,
            steps=self.steps,
            workers=self.workers,
            host=f"host{rank * self.hosts // self.workers + 1}",
            hosts=self.hosts,
            hosts_given=self.hosts_given,
            card="eth0",
            device="CPU",
            threads=1,
            parameters=self.parameters,
            exchanged_bytes=4 * self.parameters,
            exchange=self.exchange,
            flops_per_step=10**10,
            peak_flops=10**11,
        )

    def write_step(self, records: RecordWriter, rank: int, step: int, clock: Clock) -> None:
        phases: dict[str, float] = dict(self.phases.get(rank, COMPUTING))
        seconds = sum(phases.values())
        clock.seconds += seconds
        values: dict[str, Any] = {"loss": self.loss(step), "gradient_norm": 1.0, "learning_rate": 1e-3}
        if rank in self.slots:
            values["slots"] = self.slots[rank]
        records.write(
            "step",
            step=step,
            targets=1000,
            seconds=seconds,
            phases=phases,
            cpu=self.cpu_share * seconds,
            received=self.received,
            sent=self.received,
            **values,
        )
        for at, loss, bleu in self.valid if rank == 0 else ():
            if at == step:
                records.write(
                    "valid", step=step, loss=loss, bleu=bleu, chrf=2 * bleu, perplexity=2.7**loss, seconds=0.1
                )
                records.write(
                    "sample", step=step, source="A house.", reference="Ein Haus.", output=f"Haus {step}"
                )
                records.write(
                    "checkpoint",
                    step=step,
                    name=f"step-{step:08d}",
                    bytes=12 * self.parameters + 900,
                    seconds=0.1,
                )
        if step % 5 == 0:
            records.write(
                "host",
                host=f"host{rank + 1}",
                seconds=2.0,
                processors=0.9,
                memory=2 * 2**30,
                memory_total=8 * 2**30,
                disk_read=0,
                disk_written=0,
                card="eth0",
                cards={"eth0": [20_000_000, 20_000_000]},
                gpus=[],
            )


@dataclass
class Clock:
    """Time as the records see it."""

    start: float = field(default_factory=time.time)
    seconds: float = 0.0

    def now(self) -> float:
        return self.start + self.seconds
