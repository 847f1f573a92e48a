"""What waiting OpenMP threads cost: one worker with two threads, on an idle machine and beside busy processes.

Settings take turns; the table shows the median tokens per second of each and its ratio to libgomp's default on the idle
machine. A setting that does not finish in TIMEOUT_S counts as 0. Needs a quiet machine.
Usage:
    python -m bench.bench_threads [--rounds 3] [--steps 15] [--busy 3]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
TIMEOUT_S = 300
SETTINGS: dict[str, tuple[int, dict[str, str]]] = {
    "libgomp's default (spins 300,000 times)": (1, {"GOMP_SPINCOUNT": "300000"}),
    "spins 10,000 times": (1, {"GOMP_SPINCOUNT": "10000"}),
    "spins 3,000 times (Echelon's default)": (1, {}),
    "spins 1,000 times": (1, {"GOMP_SPINCOUNT": "1000"}),
    "does not spin": (1, {"OMP_WAIT_POLICY": "passive"}),
    "one worker, one thread": (1, {"OMP_NUM_THREADS": "1"}),
    "two workers, one thread each": (2, {}),
}
"""Workers and environment by name."""


@contextlib.contextmanager
def busy_processes(number: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def tokens_per_second(workers: int, settings: dict[str, str], steps: int) -> float:
    ours = ("OMP_", "GOMP_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, "-m", "echelon", "benchmark", str(RECIPE), "--json"]
    try:
        result = subprocess.run(
            [*command, "--workers", str(workers), "--steps", str(steps)],
            env=environment | settings,
            capture_output=True,
            check=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return 0.0
    return float(json.loads(result.stdout)["tokens_per_second"])


def measure(rounds: int, steps: int) -> dict[str, float]:
    seen: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for _ in range(rounds):
        for name, (workers, settings) in SETTINGS.items():
            seen[name].append(tokens_per_second(workers, settings, steps))
    return {name: statistics.median(values) for name, values in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--busy", type=int, default=3)
    options = parser.parse_args()
    subprocess.run([sys.executable, "-m", "echelon", "prepare", str(RECIPE)], check=True, capture_output=True)
    idle = measure(options.rounds, options.steps)
    with busy_processes(options.busy):
        busy = measure(options.rounds, options.steps)
    whole = next(iter(idle.values()))
    print(f"| one worker with two threads | idle | beside {options.busy} busy processes |\n|---|---|---|")
    for name in SETTINGS:
        print(
            f"| {name} | {idle[name]:,.0f} ({idle[name] / whole:.2f}) | {busy[name]:,.0f} ({busy[name] / whole:.2f}) |"
        )


if __name__ == "__main__":
    main()
