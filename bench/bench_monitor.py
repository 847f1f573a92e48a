"""What measuring costs: the same steps with the meter and the sampler and without them, in turns, in one process.

Prints how much longer a step takes with them. Usage:
    python bench/bench_monitor.py [--rounds 12] [--steps 15]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from echelon.comm.group import Group
from echelon.commands.preparing import prepare_data
from echelon.commands.training import write_run
from echelon.monitor.cards import open_card
from echelon.monitor.meter import Phase, StepMeter
from echelon.monitor.records import RecordWriter
from echelon.monitor.sampler import HostSampler, SamplerThread
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from echelon.train.loop import Training, log_step, take_step
from echelon.train.worker import set_up

RECIPE = Path(__file__).parents[1] / "recipes" / "lab.toml"
_LAPS = 100_000


class NoMeter(StepMeter):
    """Measures nothing."""

    def lap(self, phase: Phase) -> None:
        """Nothing."""

    def take(self) -> dict[str, Any]:
        return {"phases": {}}


def time_steps(training: Training, steps: int) -> float:
    """Mean seconds of processor time of a step, its record and the sampler's thread included: what others do on this
    machine meanwhile does not count."""
    started = time.process_time()
    for step in range(1, steps + 1):
        log_step(training, take_step(training, step))
    return (time.process_time() - started) / steps


def compare(training: Training, rounds: int, steps: int) -> list[float]:
    """By what share steps take longer with measuring, round by round; which comes first alternates."""
    meters = {True: StepMeter(open_card("lo")), False: NoMeter()}
    ratios = []
    for number in range(rounds):
        seconds = {}
        for measures in (True, False) if number % 2 else (False, True):
            training.meter = meters[measures]
            sampler = SamplerThread(HostSampler("here", "lo"), training.records) if measures else None
            seconds[measures] = time_steps(training, steps)
            if sampler is not None:
                sampler.stop()
        ratios.append(seconds[True] / seconds[False] - 1)
    return ratios


def lap_seconds() -> float:
    meter = StepMeter()
    started = time.perf_counter()
    for _ in range(_LAPS):
        meter.lap("forward")
    return (time.perf_counter() - started) / _LAPS


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(RECIPE)
    with tempfile.TemporaryDirectory(prefix="bench-monitor-") as folder:
        run = RunFolder(Path(folder))
        run.create()
        write_run(run, recipe, prepare_data(recipe, RECIPE.parent, Console(stderr=True)))
        with contextlib.closing(RecordWriter(run.worker_records(0))) as records:
            training = set_up(run, Group(0, 1), records)
            training.trackers = []
            training.model.train()
            time_steps(training, 5)
            ratios = compare(training, options.rounds, options.steps)
    sampler = HostSampler("here", "lo")
    started = time.perf_counter()
    for _ in range(50):
        sampler.sample()
    sample = (time.perf_counter() - started) / 50
    print(
        f"a lap: {lap_seconds() * 1e6:.2f} microseconds; a sample of the host: {sample * 1e3:.2f} ms every 2 s"
    )
    middle = statistics.median(ratios)
    span = f"{min(ratios):+.2%} to {max(ratios):+.2%}"
    print(f"steps with measuring take {middle:+.2%} (median of {len(ratios)} rounds; {span})")


if __name__ == "__main__":
    main()
