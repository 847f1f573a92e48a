"""Planned against measured step times on the hosts of a lab, over numbers of hosts and line rates.

The plan counts with a profile of one host, taken between the runs, so that a machine whose speed drifts does not
matter. Hosts of a lab share one machine's caches and memory, as real hosts do not: while one is profiled, as many as
train together are kept as busy, each with training of its own. Usage (as root, on Linux):
    python bench/bench_plan.py [--steps 12] [--cpus 0.4] [--recipe recipes/lab.toml] [--only 2@1gbit,3@1gbit]
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.preparing import prepare_data
from echelon.commands.training import write_run
from echelon.explain.clusters import Cluster
from echelon.explain.cost import predict
from echelon.explain.describe import describe
from echelon.explain.hardware import processor
from echelon.explain.profile import Profile, profile_of
from echelon.explain.workload import Workload, recipe_workload
from echelon.lab.lab import Lab
from echelon.lab.plan import LabSpec
from echelon.lab.rate import parse_rate
from echelon.launch.local import Placement, render_worker
from echelon.monitor.records import read_records
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder, write_json

COMBINATIONS = (
    (1, "1gbit"),
    (2, "100mbit"),
    (2, "1gbit"),
    (2, "10gbit"),
    (3, "100mbit"),
    (3, "1gbit"),
    (3, "10gbit"),
)
_LIMIT = 0.15
_SECONDS = 120


@dataclass(frozen=True)
class Row:
    """One combination."""

    hosts: int
    rate: str
    planned: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def measure(lab: Lab, runs: list[RunFolder], hosts: int, steps: int, *, together: bool) -> dict[str, Any]:
    """Steps on the lab's first hosts, one worker each, of one run or each of its own; what the first measured."""
    addresses = [host.address for host in lab.status().hosts]
    workers = []
    for number in range(hosts):
        rank, size = (number, hosts) if together else (0, 1)
        run = runs[0] if together else runs[number]
        place = Placement(size, rank, addresses[0], 29_500, "eth0", num_hosts=size, threads=1)
        spec = render_worker(run, place, 0, 1, ["--benchmark", str(steps)])
        settings = spec.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = ["env", *(f"{name}={value}" for name, value in settings.items()), *spec.command]
        command = ["ssh", "-F", str(lab.ssh_config), lab.hosts[number], shlex.join(words)]
        workers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    for worker in workers:
        _, said = worker.communicate(timeout=_SECONDS)
        if worker.returncode:
            raise SystemExit(f"a worker failed:\n{said}")
    return [r for r in read_records(runs[0].worker_records(0)) if r["kind"] == "benchmark"][-1]


def plan(
    workload: Workload, profile: Profile, hosts: int, rate: str, cpus: float
) -> tuple[float, float, float]:
    cluster = Cluster("lab", hosts, 1, processor(cpus), parse_rate(rate) / 8, cpus)
    seconds = predict(workload, cluster, profile=profile).seconds
    return seconds.expected, seconds.low, seconds.high


def run_all(lab: Lab, runs: list[RunFolder], workload: Workload, options: argparse.Namespace) -> list[Row]:
    """Every combination, a profile before and after each."""
    rows = []
    for hosts, group in itertools.groupby(options.only, key=lambda combination: combination[0]):
        profiles, measured, rates = (
            [profile(lab, runs, hosts, workload, options)],
            [],
            [rate for _, rate in group],
        )
        for rate in rates:
            for host in lab.hosts:
                lab.rate(host, rate)
            measured.append(measure(lab, runs, hosts, options.steps, together=True)["seconds_per_step"])
            profiles.append(profile(lab, runs, hosts, workload, options))
        for number, (rate, seconds) in enumerate(zip(rates, measured, strict=True)):
            near = middle_of(profiles[number : number + 2])
            rows.append(Row(hosts, rate, *plan(workload, near, hosts, rate, options.cpus), seconds))
    return rows


def profile(
    lab: Lab, runs: list[RunFolder], hosts: int, workload: Workload, options: argparse.Namespace
) -> Profile:
    found = profile_of(measure(lab, runs, hosts, options.steps, together=False), workload.slots)
    print(f"a host alone, {hosts} being busy: {found.seconds_per_step:.3f} s a step", flush=True)
    return found


def middle_of(profiles: list[Profile]) -> Profile:
    """Each number's median."""
    columns = [asdict(profile) for profile in profiles]
    return Profile(**{name: statistics.median(column[name] for column in columns) for name in columns[0]})


def parse_combinations(text: str) -> list[tuple[int, str]]:
    """`2@1gbit,3@100mbit`."""
    return [(int(hosts), rate) for hosts, _, rate in (part.partition("@") for part in text.split(","))]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--cpus", type=float, default=0.4)
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parents[1] / "recipes" / "lab.toml")
    parser.add_argument("--only", type=parse_combinations, default=COMBINATIONS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the lab is removed then, too
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder:
        lab = Lab.up(LabSpec(f"plan{os.getpid()}", Path(folder) / "lab", 3, "1gbit", options.cpus))
        try:
            os.environ["ECHELON_CACHE"] = str(lab.shared / "cache")
            recipe = load_recipe(options.recipe)
            prepared = prepare_data(recipe, options.recipe.parent, Console(stderr=True))
            runs = [RunFolder(lab.shared / f"run{number}") for number in range(3)]
            for run in runs:
                run.create()
                write_run(run, recipe, prepared)
            workload = recipe_workload(recipe, prepared, describe(recipe, prepared))
            rows = run_all(lab, runs, workload, options)
        finally:
            lab.down()
    print(f"\n{'hosts':<7}{'line':<10}{'planned':>9}{'measured':>10}{'error':>8}   range")
    for row in rows:
        print(
            f"{row.hosts:<7}{row.rate:<10}{row.planned:>8.3f}s{row.measured:>9.3f}s{row.error:>+8.1%}"
            f"   {row.low:.3f} to {row.high:.3f}"
        )
    within = sum(abs(row.error) <= _LIMIT for row in rows)
    print(f"{within} of {len(rows)} within {_LIMIT:.0%}")
    if options.json:
        write_json(options.json, [asdict(row) for row in rows])
    sys.exit(within < len(rows))


if __name__ == "__main__":
    main()
