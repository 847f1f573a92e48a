"""Planned against measured step times on the hosts of a lab, over numbers of hosts, line rates and exchanges.

Every host's worker takes turns: some steps by itself, which is the profile, then some steps with the others under each
exchange, which is what was planned from it; so a machine whose speed drifts does not matter, and hosts that share one
machine's caches are as busy in all of them. Usage (as root, on Linux):
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

from echelon.commands.prepare import prepare_data
from echelon.commands.run_setup import write_run
from echelon.explain.clusters import Cluster
from echelon.explain.cost import PlannedExchange, predict
from echelon.explain.description import describe_recipe
from echelon.explain.hardware import processor
from echelon.explain.profile import profile_of
from echelon.explain.workload import Workload, recipe_workload
from echelon.lab.lab import Lab
from echelon.lab.layout import LabSpec
from echelon.lab.rate import parse_rate
from echelon.launch.placement import Placement, render_worker
from echelon.monitor.meter import PHASES
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder, read_json, write_json

EXACT: tuple[PlannedExchange, ...] = ("all_reduce",)
ALL: tuple[PlannedExchange, ...] = ("all_reduce", "compressed", "low_rank", "local")
COMBINATIONS = {
    1: {"1gbit": EXACT},
    2: {"100mbit": ALL, "1gbit": ALL, "10gbit": EXACT},
    3: {"100mbit": EXACT, "1gbit": EXACT, "10gbit": EXACT},
}
"""Exchanges by hosts and line rate."""
SETTINGS = ("exchange.every=8", "exchange.overlap=2")
"""So that a turn of `local`, which is all steps from the middle between two agreements to the next, is not long."""
_STEPS = 3
"""Of a turn, otherwise."""
_LIMIT = 0.15
_SECONDS = 400


@dataclass(frozen=True)
class Row:
    """One combination."""

    hosts: int
    rate: str
    exchange: PlannedExchange
    planned: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def run_hosts(lab: Lab, folder: Path, hosts: int, rounds: int) -> dict[str, Any]:
    """What the first of so many hosts measured at each of their line rates."""
    addresses = [host.address for host in lab.status().hosts]
    workers = []
    for rank in range(hosts):
        place = Placement(hosts, rank, addresses[0], 29_500, "eth0", num_hosts=hosts, threads=1)
        program = (sys.executable, str(Path(__file__).resolve()), "--worker")
        spec = render_worker(RunFolder(folder), place, 0, 1, [str(rounds)], program=program)
        settings = spec.environment | {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        words = ["env", *(f"{name}={value}" for name, value in settings.items()), *spec.command]
        command = ["ssh", "-F", str(lab.ssh_config), lab.hosts[rank], shlex.join(words)]
        workers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    for rate in COMBINATIONS[hosts]:
        for host in lab.hosts:
            lab.rate(host, rate)
        (folder / f"go-{rate}").touch()
        wait_for(folder / f"done-{rate}", workers)
    for worker in workers:
        worker.communicate(timeout=_SECONDS)
    return {rate: read_json(folder / f"done-{rate}") for rate in COMBINATIONS[hosts]}


def wait_for(path: Path, workers: list[subprocess.Popen[str]], seconds: float = _SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        failed = [worker for worker in workers if worker.poll()]
        if failed or time.monotonic() > deadline:
            said = failed[0].communicate()[1] if failed else "it took too long"
            raise SystemExit(f"a worker failed:\n{said}")
        time.sleep(0.1)


def work(folder: Path, rounds: int) -> None:
    """A worker's side: at each rate, turns alone and turns together under each exchange."""
    from echelon.comm.group import Group, join_group
    from echelon.monitor.records import RecordWriter
    from echelon.train.worker import set_up

    group = join_group(_SECONDS)
    records = RecordWriter(folder / f"records-{group.rank}.jsonl")
    runs = {name: RunFolder(folder / name) for name in exchanges_of(group.size)}
    alone = set_up(runs["all_reduce"], Group(0, 1), records)
    trainings = {name: set_up(run, group, records) for name, run in runs.items()}
    for training in (alone, *trainings.values()):
        take_turn(training, range(1, 2))
    for rate, exchanges in COMBINATIONS[group.size].items():
        while not (folder / f"go-{rate}").exists():
            time.sleep(0.05)
        phases: Counter[str] = Counter()
        together = dict.fromkeys(exchanges, 0.0)
        take_turn(trainings["all_reduce"], range(1, 2))
        for _ in range(rounds):
            group.barrier()
            phases.update(take_turn(alone, turn_of("all_reduce", alone.recipe))[1])
            for name in exchanges:
                group.barrier()
                turn = turn_of(name, trainings[name].recipe)
                together[name] += take_turn(trainings[name], turn)[0] / len(turn) / rounds
        breakdown = {phase: phases[phase] / rounds / _STEPS for phase in PHASES}
        if group.is_first:
            measured = {"workers": 1, "breakdown": breakdown, "seconds_per_step": sum(breakdown.values())}
            write_json(folder / f"done-{rate}", {"alone": measured, "together": together})
        group.barrier()
    os._exit(0)


def exchanges_of(hosts: int) -> list[PlannedExchange]:
    return list(dict.fromkeys(name for names in COMBINATIONS[hosts].values() for name in names))


def turn_of(exchange: PlannedExchange, recipe: Recipe) -> range:
    """The steps of a turn; an agreement of `local` begins in the middle of its turn, and ends in it."""
    if exchange != "local":
        return range(1, _STEPS + 1)
    first = recipe.exchange.every - recipe.exchange.overlap + 1
    return range(first, first + recipe.exchange.every)


def take_turn(training: Any, steps: range) -> tuple[float, dict[str, float]]:
    """Some steps: seconds of all of them, and by phase."""
    from echelon.train.loop import take_step

    training.meter.take()
    training.model.module.train()
    seconds = sum(take_step(training, step).seconds for step in steps)
    return seconds, training.meter.take()["phases"]


def plan(workload: Workload, cluster: Cluster, rate: str, measured: dict[str, Any]) -> list[Row]:
    """What each exchange was planned to take, from the profile, beside what it took."""
    profile, rows = profile_of(measured["alone"], workload.slots), []
    for exchange, seconds in measured["together"].items():
        planned = predict(workload, cluster, exchange, profile).seconds
        rows.append(Row(cluster.hosts, rate, exchange, planned.expected, planned.low, planned.high, seconds))
    return rows


def measure_all(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-plan-") as place:
        lab = Lab.up(LabSpec(f"plan{os.getpid()}", Path(place) / "lab", 3, "1gbit", options.cpus))
        try:
            os.environ["ECHELON_CACHE"] = str(lab.shared / "cache")
            recipe = load_recipe(options.recipe, SETTINGS)
            prepared = prepare_data(recipe, options.recipe.parent, Console(stderr=True))
            workload = recipe_workload(recipe, prepared, describe_recipe(recipe, prepared))
            rows = []
            for hosts in COMBINATIONS:
                folder = lab.shared / f"hosts{hosts}"
                for name in exchanges_of(hosts):
                    run = RunFolder(folder / name)
                    run.create()
                    write_run(
                        run, load_recipe(options.recipe, [*SETTINGS, f"train.exchange={name}"]), prepared
                    )
                for rate, measured in run_hosts(lab, folder, hosts, options.rounds).items():
                    line = parse_rate(rate) / 8
                    cluster = Cluster("lab", hosts, 1, processor(options.cpus), line, options.cpus)
                    rows += plan(workload, cluster, rate, measured)
                    print(
                        f"{hosts} hosts, {rate}: alone {measured['alone']['seconds_per_step']:.3f} s",
                        flush=True,
                    )
            return rows
        finally:
            lab.down()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]))
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpus", type=float, default=0.4)
    parser.add_argument("--recipe", type=Path, default=Path(__file__).parents[1] / "recipes" / "lab.toml")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the lab is removed then, too
    rows = measure_all(options)
    print(f"\n{'hosts':<7}{'line':<10}{'exchange':<12}{'planned':>9}{'measured':>10}{'error':>8}   range")
    for row in rows:
        print(
            f"{row.hosts:<7}{row.rate:<10}{row.exchange:<12}{row.planned:>8.3f}s{row.measured:>9.3f}s"
            f"{row.error:>+8.1%}   {row.low:.3f} to {row.high:.3f}"
        )
    within = sum(abs(row.error) <= _LIMIT for row in rows)
    print(f"{within} of {len(rows)} within {_LIMIT:.0%}")
    if options.json:
        write_json(options.json, [asdict(row) for row in rows])
    sys.exit(within < 6)


if __name__ == "__main__":
    main()
