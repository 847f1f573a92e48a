"""The page of all runs: times and memory, with TensorBoard on the same values beside it.

A few long runs are written once; every further folder has hard links to their records, which costs no disk and is read
like any other. Times are those of a program that asks as the page does, without the browser's drawing.
Usage:
    python -m bench.bench_dashboard [--runs 200] [--steps 100000]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import psutil
from tests.sample_recipe import sample_recipe
from torch.utils.tensorboard import SummaryWriter

from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder

WRITTEN = 10
"""Runs that are written; the others are links to them."""
IN_A_CHART = 10
PATIENCE_S = 3600
PHASES = {
    "data": 0.002,
    "forward": 0.03,
    "backward": 0.06,
    "communication": 0.004,
    "optimiser": 0.003,
    "other": 0.001,
}
TAGS = ("loss", "learning_rate", "gradient_norm", "seconds")


def write_runs(folder: Path, runs: int, steps: int) -> None:
    for number in range(runs):
        run = RunFolder(folder / f"run-{number:03d}")
        run.create()
        recipe = sample_recipe(f"train.steps={steps}", f"seed={number + 1}", f"name=run{number}")
        run.recipe.write_text(dump_recipe(recipe))
        if number < WRITTEN:
            write_records(run.worker_records(0), number, steps)
        else:
            first = RunFolder(folder / f"run-{number % WRITTEN:03d}")
            os.link(first.worker_records(0), run.worker_records(0))


def write_records(file: Path, number: int, steps: int) -> None:
    begun = time.time() - 0.1 * steps
    start = {
        "kind": "start",
        "time": begun,
        "step": 0,
        "steps": steps,
        "workers": 2,
        "hosts": 1,
        "device": "CPU",
    }
    phases = json.dumps(PHASES)
    with file.open("w") as records:
        records.write(json.dumps(start) + "\n")
        for step in range(1, steps + 1):
            loss = loss_at(number, step)
            records.write(
                f'{{"kind": "step", "time": {begun + 0.1 * step:.3f}, "step": {step}, "targets": 1000, "seconds": 0.1, '
                f'"phases": {phases}, "loss": {loss:.6f}, "learning_rate": 0.001, "gradient_norm": 1.0, '
                f'"received": 1000000, "sent": 1000000}}\n'
            )
        end = {
            "kind": "end",
            "time": begun + 0.1 * steps,
            "step": steps,
            "outcome": "finished",
            "seconds": 1.0,
        }
        records.write(json.dumps(end) + "\n")


def loss_at(number: int, step: int) -> float:
    return 2 + 0.01 * number + 6 / math.sqrt(step) + 0.05 * ((step * 7919 + number) % 101) / 101


def write_events(folder: Path, runs: int, steps: int) -> None:
    """The same values for TensorBoard."""
    for number in range(runs):
        own = folder / f"run-{number:03d}"
        if number >= WRITTEN:
            own.mkdir(parents=True)
            for file in (folder / f"run-{number % WRITTEN:03d}").iterdir():
                os.link(file, own / file.name)
            continue
        with SummaryWriter(str(own)) as events:
            for step in range(1, steps + 1):
                for tag, value in zip(TAGS, (loss_at(number, step), 0.001, 1.0, 0.1), strict=True):
                    events.add_scalar(tag, value, step)


def free_port() -> int:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


@contextmanager
def served(command: list[str], environment: dict[str, str]) -> Iterator[psutil.Process]:
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | environment
    )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def ask(address: str) -> Any:
    with urlopen(address, timeout=600) as answer:
        return json.loads(answer.read())


def wait_for(found: Callable[[], bool]) -> float:
    """Seconds until `found`."""
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE_S:
        try:
            if found():
                return time.monotonic() - begun
        except OSError:
            pass
        # Rarely, once it takes longer: asking takes time from reading.
        time.sleep(0.02 if time.monotonic() - begun < 2 else 1.0)
    raise SystemExit("it takes longer than an hour")


def memory_of(process: psutil.Process) -> float:
    """MB of a process and its children."""
    together = [process, *process.children(recursive=True)]
    return sum(each.memory_info().rss for each in together) / 1e6


def timed(act: Callable[[], object]) -> float:
    begun = time.monotonic()
    act()
    return time.monotonic() - begun


@dataclass(frozen=True)
class Measured:
    """Seconds, and MB."""

    up: float
    listed: float
    first_chart: float
    everything_read: float
    chart_again: float
    memory: float

    def show(self, what: str) -> None:
        print(
            f"{what}: up after {self.up:.2f} s; list after another {self.listed:.2f} s; first chart of {IN_A_CHART} "
            f"{self.first_chart:.2f} s; everything read {self.everything_read:.1f} s later; that chart again "
            f"{self.chart_again:.2f} s; memory {self.memory:.0f} MB",
            flush=True,
        )


def measure_page(folder: Path, runs: int, cache: Path) -> Measured:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "echelon", "dashboard", str(folder), "--port", str(port)]
    with served(command, {"ECHELON_CACHE": str(cache)}) as process:
        up = wait_for(lambda: bool(urlopen(address, timeout=60).read()))
        rows: list[dict[str, Any]] = []
        listed = timed(lambda: rows.extend(ask(f"{address}/api/runs")["rows"]))
        assert len(rows) == runs, "every run is listed at once"
        chosen = [("run", row["id"]) for row in rows[:IN_A_CHART]]
        query = urlencode([("chart", "loss"), ("x", "step"), ("smooth", "auto"), *chosen])
        first = timed(lambda: ask(f"{address}/api/curves?{query}"))
        complete = wait_for(lambda: not any(row["is_partial"] for row in ask(f"{address}/api/runs")["rows"]))
        again = timed(lambda: ask(f"{address}/api/curves?{query}"))
        return Measured(up, listed, first, complete, again, memory_of(process))


def measure_tensorboard(folder: Path, runs: int) -> Measured:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port)]
    scalars = f"{address}/data/plugin/scalars"

    def read() -> list[str]:
        """Runs whose values are there."""
        return [run for run, tags in ask(f"{scalars}/tags").items() if "loss" in tags]

    def draw() -> None:
        for run in read()[:IN_A_CHART]:
            ask(f"{scalars}/scalars?{urlencode({'run': run, 'tag': 'loss'})}")

    with served([*command, "--load_fast", "false"], {}) as process:
        up = wait_for(lambda: bool(urlopen(address, timeout=60).read()))
        listed = wait_for(lambda: len(ask(f"{address}/data/runs")) == runs)
        first = wait_for(lambda: len(read()) >= IN_A_CHART) + timed(draw)
        complete = wait_for(lambda: len(read()) == runs)
        return Measured(up, listed, first, complete, timed(draw), memory_of(process))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="echelon-bench-") as made:
        place = Path(made)
        write_runs(place / "runs", given.runs, given.steps)
        write_events(place / "events", given.runs, given.steps)
        print(f"{given.runs} runs of {given.steps:,} steps")
        for what in ("nothing read before", "started again"):
            measure_page(place / "runs", given.runs, place / "cache").show(f"echelon dashboard, {what}")
        measure_tensorboard(place / "events", given.runs).show("tensorboard")


if __name__ == "__main__":
    main()
