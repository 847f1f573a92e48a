"""What measuring costs: the same steps with the meter and the sampler and without them, in turns, in one process.

Prints what its parts take, timed by themselves, and how much longer whole steps take; the latter needs a quiet machine.
Exit status 1 where the parts take more of a step than MOST.
Usage:
    python bench/bench_monitor.py [--rounds 12] [--steps 15]
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from echelon.comm.group import Group
from echelon.commands.prepare import prepare_data
from echelon.commands.run_setup import write_run
from echelon.monitor.interface_counters import open_counter
from echelon.monitor.meter import Phase, StepMeter
from echelon.monitor.records import RecordWriter
from echelon.monitor.sampler import SAMPLE_S, HostSampler, SamplerThread
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from echelon.train.loop import Training, log_step, take_step
from echelon.train.worker import set_up

MOST = 0.01
"""Share of a step that measuring may take."""
RECIPE = Path(__file__).parents[1] / "recipes" / "lab.toml"


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
    meters = {True: StepMeter(open_counter("lo")), False: NoMeter()}
    ratios = []
    for number in range(rounds):
        seconds = {}
        for measures in (True, False) if number % 2 else (False, True):
            training = replace(training, meter=meters[measures])
            sampler = SamplerThread(HostSampler("here", "lo"), training.records) if measures else None
            seconds[measures] = time_steps(training, steps)
            if sampler is not None:
                sampler.stop()
        ratios.append(seconds[True] / seconds[False] - 1)
    return ratios


def direct_cost(training: Training) -> tuple[float, float]:
    """Processor seconds that measuring takes in a step, each of its parts timed by itself; and of the whole step."""
    slots, meter = training.recipe.train.slots, StepMeter(open_counter("lo"))
    step_s = time_steps(training, 8)

    def measure_a_step() -> None:
        for _ in range(3 * slots + 6):  # as many laps as a step has
            meter.lap("forward")
        training.records.write("step", **meter.take())

    sampler = HostSampler("here", "lo")
    return cpu_seconds(measure_a_step) + step_s / SAMPLE_S * cpu_seconds(sampler.sample), step_s


def cpu_seconds(act: Callable[[], object], times: int = 200) -> float:
    started = time.process_time()
    for _ in range(times):
        act()
    return (time.process_time() - started) / times


def main() -> int:
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
            training = replace(set_up(run, Group(0, 1), records), trackers=[])
            training.model.module.train()
            time_steps(training, 5)
            cost, step_s = direct_cost(training)
            ratios = compare(training, options.rounds, options.steps)
    print(f"measuring takes {1e3 * cost:.3f} ms of a step's {1e3 * step_s:.0f} ms: {cost / step_s:.3%}")
    middle = statistics.median(ratios)
    span = f"{min(ratios):+.2%} to {max(ratios):+.2%}"
    print(f"steps with measuring take {middle:+.2%} (median of {len(ratios)} rounds; {span})")
    return int(cost / step_s > MOST)


if __name__ == "__main__":
    sys.exit(main())
