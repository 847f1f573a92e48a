"""Planned against measured step times on the hosts of a lab, over numbers of hosts and line rates.

Every host's worker takes turns: some steps by itself, which is the profile, then some steps with the others, which is
what was planned from it; so a machine whose speed drifts does not matter, and hosts that share one machine's caches are
as busy in both. Usage (as root, on Linux):
    python bench/bench_plan.py [--rounds 5] [--cpus 0.4] [--recipe recipes/lab.toml] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.preparing import prepare_data
from echelon.commands.training import write_run
from echelon.explain.clusters import Cluster
from echelon.explain.cost import predict
from echelon.explain.describing import describe_recipe
from echelon.explain.hardware import processor
from echelon.explain.profile import profile_of
from echelon.explain.workload import Workload, recipe_workload
from echelon.lab.lab import Lab
from echelon.lab.plan import LabSpec
from echelon.lab.rate import parse_rate
from echelon.launch.local import Placement, render_worker
from echelon.monitor.meter import PHASES
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder, read_json, write_json

COMBINATIONS = {1: ("1gbit",), 2: ("100mbit", "1gbit", "10gbit"), 3: ("100mbit", "1gbit", "10gbit")}
_STEPS = 3
"""Of a turn."""
_LIMIT = 0.15
_SECONDS = 200


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


def run_hosts(lab: Lab, run: RunFolder, hosts: int, rounds: int) -> dict[str, Any]:
    """What the first of so many hosts measured at each of their line rates."""
    addresses = [host.address for host in lab.status().hosts]
    workers = []
    for rank in range(hosts):
        place = Placement(hosts, rank, addresses[0], 29_500, "eth0", num_hosts=hosts, threads=1)
        program = (sys.executable, str(Path(__file__).resolve()), "--worker")
        spec = render_worker(run, place, 0, 1, [str(rounds), *COMBINATIONS[hosts]], program=program)
        settings = spec.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = ["env", *(f"{name}={value}" for name, value in settings.items()), *spec.command]
        command = ["ssh", "-F", str(lab.ssh_config), lab.hosts[rank], shlex.join(words)]
        workers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    for rate in COMBINATIONS[hosts]:
        for host in lab.hosts:
            lab.rate(host, rate)
        (run.path / f"go-{rate}").touch()
        wait_for(run.path / f"done-{rate}", workers)
    for worker in workers:
        worker.communicate(timeout=_SECONDS)
    return {rate: read_json(run.path / f"done-{rate}") for rate in COMBINATIONS[hosts]}


def wait_for(path: Path, workers: list[subprocess.Popen[str]], seconds: float = _SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        failed = [worker for worker in workers if worker.poll()]
        if failed or time.monotonic() > deadline:
            said = failed[0].communicate()[1] if failed else "it took too long"
            raise SystemExit(f"a worker failed:\n{said}")
        time.sleep(0.1)


def work(folder: Path, rounds: int, rates: list[str]) -> None:
    """A worker's side: at each rate, turns alone and turns together."""
    from echelon.comm.group import Group, join_group
    from echelon.monitor.records import RecordWriter
    from echelon.train.worker import set_up

    run, group = RunFolder(folder), join_group(_SECONDS)
    records = RecordWriter(run.worker_records(group.rank))
    alone, together = set_up(run, Group(0, 1), records), set_up(run, group, records)
    for training in (alone, together):
        take_turn(training, 1)
    for rate in rates:
        while not (folder / f"go-{rate}").exists():
            time.sleep(0.05)
        phases: Counter[str] = Counter()
        seconds = 0.0
        take_turn(together, 1)
        for _ in range(rounds):
            group.barrier()
            phases.update(take_turn(alone, _STEPS)[1])
            group.barrier()
            seconds += take_turn(together, _STEPS)[0]
        steps = rounds * _STEPS
        breakdown = {phase: phases[phase] / steps for phase in PHASES}
        if group.is_first:
            measured = {"workers": 1, "breakdown": breakdown, "seconds_per_step": sum(breakdown.values())}
            write_json(folder / f"done-{rate}", {"alone": measured, "together": seconds / steps})
        group.barrier()
    os._exit(0)


def take_turn(training: Any, steps: int) -> tuple[float, dict[str, float]]:
    """Some steps: seconds of all of them, and by phase."""
    from echelon.train.loop import take_step

    training.meter.take()
    training.model.train()
    seconds = sum(take_step(training, step).seconds for step in range(1, steps + 1))
    return seconds, training.meter.take()["phases"]


def plan(workload: Workload, measured: dict[str, Any], hosts: int, rate: str, cpus: float) -> Row:
    cluster = Cluster("lab", hosts, 1, processor(cpus), parse_rate(rate) / 8, cpus)
    seconds = predict(workload, cluster, profile=profile_of(measured["alone"], workload.slots)).seconds
    return Row(hosts, rate, seconds.expected, seconds.low, seconds.high, measured["together"])


def measure_all(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as folder:
        lab = Lab.up(LabSpec(f"plan{os.getpid()}", Path(folder) / "lab", 3, "1gbit", options.cpus))
        try:
            os.environ["ECHELON_CACHE"] = str(lab.shared / "cache")
            recipe = load_recipe(options.recipe)
            prepared = prepare_data(recipe, options.recipe.parent, Console(stderr=True))
            workload = recipe_workload(recipe, prepared, describe_recipe(recipe, prepared))
            rows = []
            for hosts in COMBINATIONS:
                run = RunFolder(lab.shared / f"run{hosts}")
                run.create()
                write_run(run, recipe, prepared)
                for rate, measured in run_hosts(lab, run, hosts, options.rounds).items():
                    rows.append(plan(workload, measured, hosts, rate, options.cpus))
                    print(
                        f"{hosts} hosts, {rate}: alone {measured['alone']['seconds_per_step']:.3f} s",
                        flush=True,
                    )
            return rows
        finally:
            lab.down()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", type=float, default=0.4)
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parents[1] / "recipes" / "lab.toml")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the lab is removed then, too
    rows = measure_all(options)
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
    sys.exit(within < 6)


if __name__ == "__main__":
    main()
