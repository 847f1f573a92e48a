"""Two hosts against one, over lines from 10 Gbit/s to 20 Mbit/s, with every exchange, interleaved in one run.

The hosts are a lab's, with one core each. Each takes turns: a step by itself, which is "one host", then steps together
under each exchange; strong scaling, so a step is the same work however many take part. Both hosts take the steps by
themselves at the same time: real ones would not share a memory either. `auto` is measured as users meet it, its choice
counting with the speed-up that it turned out to have. Usage (as root, on Linux):
    python -m bench.bench_network [--rounds 2] [--rates 1gbit,100mbit] [--only low_rank,local] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.bench_plan import wait_for
from rich.console import Console

from echelon.commands.prepare import prepare_data
from echelon.commands.run_setup import write_run
from echelon.explain.charts import Series, line_chart
from echelon.explain.sheet import standalone_svg
from echelon.lab.lab import Lab
from echelon.lab.layout import LabSpec
from echelon.lab.rate import parse_rate
from echelon.launch.placement import Placement, render_worker
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder, read_json, write_json

ROOT = Path(__file__).parents[1]
RATES = ("10gbit", "1gbit", "100mbit", "20mbit")
EXCHANGES = {
    "all_reduce": ["train.exchange=all_reduce"],
    "compressed bf16": ["train.exchange=compressed", "exchange.wire=bf16"],
    "compressed int8": ["train.exchange=compressed", "exchange.wire=int8"],
    "low_rank": ["train.exchange=low_rank"],
    "local": ["train.exchange=local"],
    "parameter_server": ["train.exchange=parameter_server"],
}
"""With two hosts of one process each, one of them serves, and only the other trains."""
_SECONDS = 1200


@dataclass
class Turns:
    """What was measured at one rate, by exchange; seconds and bytes of a step, turn by turn."""

    alone: dict[str, list[float]] = field(default_factory=dict)
    """On one host, just before each exchange's turn."""
    together: dict[str, list[float]] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    auto: dict[str, str] = field(default_factory=dict)
    """By what is allowed: the exchange that it chose, or "one host"."""
    reasons: dict[str, str] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    """What it expected a step to take."""

    def has(self, name: str) -> bool:
        """Whether this was measured: with --only, "auto" may choose something else."""
        return name == "one host" or name in self.together

    def speed_up(self, name: str) -> float:
        if name == "one host":
            return 1.0
        pairs = zip(self.alone[name], self.together[name], strict=True)
        return statistics.median(alone / together for alone, together in pairs)


def work(folder: Path, rounds: int, rates: list[str], names: list[str]) -> None:
    """A worker's side."""
    from echelon.comm.group import Group, join_group
    from echelon.monitor.records import RecordWriter
    from echelon.train.worker import set_up

    group = join_group(_SECONDS)
    records = RecordWriter(folder / f"records-{group.rank}.jsonl")
    runs = {name: RunFolder(folder / name.replace(" ", "-")) for name in names}
    alone = set_up(runs["all_reduce"], Group(0, 1), records)
    trainings = {name: set_up(run, group, records) for name, run in runs.items()}
    next_step = dict.fromkeys(names, 2)  # after the one that warms up: servers take no step twice
    for training in (alone, *trainings.values()):
        take_turn(training, range(1, 2))
    for rate in rates:
        while not (folder / f"go-{rate}").exists():
            time.sleep(0.05)
        turns = Turns()
        choose_exchange(turns, runs["all_reduce"], group)
        for _ in range(rounds):
            for name, training in trainings.items():
                group.barrier()
                turns.alone.setdefault(name, []).append(take_turn(alone, range(1, 2))[0])
                group.barrier()
                steps = steps_of(training.recipe, next_step[name])
                next_step[name] = steps.stop
                seconds, measured = take_turn(training, steps)
                turns.together.setdefault(name, []).append(seconds / len(steps))
                turns.sent[name] = measured["sent"] / len(steps)
                turns.waiting[name] = measured["phases"]["communication"] / len(steps)
        if group.is_first:
            write_json(folder / f"done-{rate}", asdict(turns))
        group.barrier()
    os._exit(0)


def steps_of(recipe: Recipe, first: int) -> range:
    """The steps of a turn; an agreement of `local` begins in the middle of its turn, and ends in it."""
    if recipe.train.exchange != "local":
        return range(first, first + 1)
    every, overlap = recipe.exchange.every, recipe.exchange.overlap
    return range(every - overlap + 1, 2 * every - overlap + 1)


def take_turn(training: Any, steps: range) -> tuple[float, dict[str, Any]]:
    """Some steps: seconds of all of them, and what the meter says."""
    from echelon.train.loop import take_step

    training.meter.take()
    training.model.module.train()
    seconds = sum(take_step(training, step).seconds for step in steps)
    return seconds, training.meter.take()


def choose_exchange(turns: Turns, run: RunFolder, group: Any) -> None:
    """What "auto" makes of this line, with the default and with everything allowed."""
    import torch

    from echelon.recipe.loading import load_recipe
    from echelon.resolve.exchange_choice import choose
    from echelon.train.exchange.measure import measure

    with_all = load_recipe(run.recipe)
    with_exact = load_recipe(run.recipe, ['train.exchange_may=["exact"]'])
    measured = measure(with_all, run, group, torch.device("cpu"))
    together: dict[str, float] = {name: measured.step_s(name) for name in measured.num_bytes}
    turns.expected = {"one host": measured.alone_s, **together}
    for label, recipe in (("exact", with_exact), ("all", with_all)):
        choice = choose(measured, recipe.train.exchange_may)
        turns.auto[label] = choice.exchange if choice.hosts is None else "one host"
        turns.reasons[label] = choice.reason


def run_hosts(lab: Lab, folder: Path, options: argparse.Namespace) -> dict[str, Turns]:
    """What the first host measured at each rate."""
    address = lab.status().hosts[0].address
    workers = []
    for rank in range(2):
        place = Placement(2, rank, address, 29_500, "eth0", num_hosts=2, threads=1)
        program = (sys.executable, "-m", "bench.bench_network", "--worker")
        arguments = [str(options.rounds), ",".join(options.rates), ",".join(options.only)]
        spec = render_worker(RunFolder(folder), place, 0, 1, arguments, program=program)
        settings = spec.environment | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        words = ["env", *(f"{name}={value}" for name, value in settings.items()), *spec.command]
        command = ["ssh", "-F", str(lab.ssh_config), lab.hosts[rank], shlex.join(words)]
        workers.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    found = {}
    for rate in options.rates:
        for host in lab.hosts:
            lab.rate(host, rate)
        (folder / f"go-{rate}").touch()
        wait_for(folder / f"done-{rate}", workers, _SECONDS)
        found[rate] = Turns(**read_json(folder / f"done-{rate}"))
        print(describe(rate, found[rate]), flush=True)
    for worker in workers:
        worker.communicate(timeout=60)
    return found


def describe(rate: str, turns: Turns) -> str:
    """One rate in lines."""
    lines = [f"\n{rate}"]
    for name, together in turns.together.items():
        seconds = ", ".join(
            f"{alone:.2f}/{both:.2f}" for alone, both in zip(turns.alone[name], together, strict=True)
        )
        lines.append(
            f"  {name:<16}{turns.speed_up(name):>5.2f} x   {seconds} s, waiting {turns.waiting[name]:.2f} s, "
            f"{turns.sent[name] / 1e6:.2f} MB sent a step"
        )
    for label, chosen in turns.auto.items():
        speed_up = f"{turns.speed_up(chosen):>5.2f} x" if turns.has(chosen) else "not measured"
        lines.append(f"  auto, {label:<10}{speed_up}   {turns.reasons[label]}")
    expected = ", ".join(f"{name} {seconds:.2f}" for name, seconds in turns.expected.items())
    return "\n".join([*lines, f"  auto expected: {expected} s"])


def table(found: dict[str, Turns]) -> str:
    """Speed-up of two hosts over one, as Markdown."""
    lines = [f"| exchange | {' | '.join(found)} |", f"|---{'|---' * len(found)}|"]
    for name in next(iter(found.values())).together:
        cells = [f"{turns.speed_up(name):.2f}" for turns in found.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for label in ("exact", "all"):
        chosen = {rate: turns.auto[label] for rate, turns in found.items()}
        if all(turns.has(chosen[rate]) for rate, turns in found.items()):
            cells = [f"{turns.speed_up(chosen[rate]):.2f} ({chosen[rate]})" for rate, turns in found.items()]
            lines.append(f"| auto, {label} allowed | {' | '.join(cells)} |")
    return "\n".join(lines)


def chart(found: dict[str, Turns]) -> str:
    """The table as a drawing: a line for each exchange over the lines' rates."""
    rates = sorted(found, key=parse_rate)
    series = [
        Series(name, [(float(place), found[rate].speed_up(name)) for place, rate in enumerate(rates)])
        for name in next(iter(found.values())).together
    ]
    sheet = line_chart(
        "Speed of two hosts over one, by the line's rate",
        series,
        x_label="line",
        show_x=lambda place: rates[round(place)] if place == round(place) else "",
        starts_at_zero=True,
    )
    return standalone_svg(sheet)


def with_exact(text: str) -> list[str]:
    """Names of exchanges, and the exact one, whose run folder the others are compared in."""
    unknown = set(names := text.split(",")) - set(EXCHANGES)
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(EXCHANGES)}")
    return list(dict.fromkeys(["all_reduce", *names]))


def measure_all(options: argparse.Namespace) -> dict[str, Turns]:
    with tempfile.TemporaryDirectory(prefix="bench-network-") as folder:
        lab = Lab.up(LabSpec(f"net{os.getpid()}", Path(folder) / "lab", 2, options.rates[0], 1.0))
        try:
            os.environ["ECHELON_CACHE"] = str(lab.shared / "cache")
            file = ROOT / "bench" / "network.toml"
            prepared = prepare_data(load_recipe(file), file.parent, Console(stderr=True))
            for name in options.only:
                run = RunFolder(lab.shared / name.replace(" ", "-"))
                run.create()
                write_run(run, load_recipe(file, [*EXCHANGES[name], *options.set]), prepared)
            return run_hosts(lab, lab.shared, options)
        finally:
            lab.down()


def main() -> None:
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","), sys.argv[5].split(","))
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rates", type=lambda text: text.split(","), default=list(RATES))
    parser.add_argument("--only", type=with_exact, default=list(EXCHANGES))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the lab is removed then, too
    found = measure_all(options)
    print(f"\n{table(found)}")
    if options.json:
        write_json(options.json, {rate: asdict(turns) for rate, turns in found.items()})
    if options.svg:
        options.svg.write_text(chart(found))


if __name__ == "__main__":
    main()
