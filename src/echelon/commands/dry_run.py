"""`train --dry-run`: what would be run on every host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from echelon.commands.remote_training import describe_launch
from echelon.commands.site_training import own_workers
from echelon.commands.training import TrainOptions, find_or_prepare, open_run
from echelon.errors import UserError
from echelon.launch.cores import available_cores
from echelon.launch.interfaces import LOOPBACK, interface_towards, resolve
from echelon.launch.placement import Placement, WorkerSpec, render_worker
from echelon.launch.site import Place, threads_for
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder

_TOLD_LATER = "(chosen at the start)"


@dataclass(frozen=True)
class HostPlan:
    """What would be run on one host."""

    host: str
    commands: list[str]
    """The commands that the user or SSH runs there; none under a site's launcher."""
    workers: list[WorkerSpec]
    """The worker processes that these start."""


@dataclass(frozen=True)
class LaunchPlan:
    """What a launcher would run on every host that is known beforehand."""

    launcher: str
    hosts: list[HostPlan]

    def document(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = []
        for host in self.hosts:
            lines += [f"{host.host}:", *(f"  {command}" for command in host.commands)]
            for worker in host.workers:
                settings = [f"{name}={shlex.quote(value)}" for name, value in worker.environment.items()]
                lines.append(f"    {' '.join(settings)} {shlex.join(worker.command)}")
        return "\n".join(lines)


def plan_here(options: TrainOptions, place: Place | None) -> LaunchPlan:
    """What would be started here and, as far as known beforehand, elsewhere."""
    recipe, run = open_run(options)
    if place is None or place.size == 1:
        workers = parse_workers(recipe.train.workers).at_start(available_cores())
        return LaunchPlan(
            "local", [HostPlan("this host", [], _plan_workers(run, Placement(workers), workers))]
        )
    workers = own_workers(options, place, recipe)
    if not place.is_host:
        host = f"process {place.rank} of {place.size} by {place.launcher}"
        return LaunchPlan(
            place.launcher, [HostPlan(host, [], _plan_workers(run, _process_placement(place), 1))]
        )
    plans = []
    for node in range(place.size):
        commands = [_typed_command(options, place, node)] if place.launcher == "by hand" else []
        placement = _node_placement(place, node, workers)
        plans.append(HostPlan(f"node {node}", commands, _plan_workers(run, placement, workers)))
    return LaunchPlan(place.launcher, plans)


def plan_over_ssh(options: TrainOptions, console: Console) -> LaunchPlan:
    """What would be run on the hosts of --hosts, which are probed; data are prepared, as hosts are checked for it."""
    assert options.cluster is not None
    recipe, run = open_run(options)
    prepared = find_or_prepare(options, recipe, run, console)
    found = describe_launch(options.cluster, run, recipe, prepared, console)
    return LaunchPlan("ssh", [HostPlan(host, commands, []) for host, commands in found.items()])


def _plan_workers(run: RunFolder, placement: Placement, workers: int) -> list[WorkerSpec]:
    specs = [render_worker(run, placement, local_rank, workers) for local_rank in range(workers)]
    return [replace(spec, environment=spec.environment | {"MASTER_PORT": _TOLD_LATER}) for spec in specs]


def _process_placement(place: Place) -> Placement:
    return Placement(
        size=place.size,
        first_rank=place.rank,
        address=LOOPBACK if place.has_one_host else _TOLD_LATER,
        interface="lo" if place.has_one_host else _TOLD_LATER,
        first_local_rank=place.local_rank,
        local_size=place.local_size,
        threads=threads_for(place, os.environ),
    )


def _node_placement(place: Place, node: int, workers: int) -> Placement:
    assert place.master is not None
    try:
        interface = interface_towards(resolve(place.master.host)).name
    except UserError:
        interface = _TOLD_LATER
    return Placement(
        size=place.size * workers,
        first_rank=node * workers,
        address=place.master.host,
        interface=interface if node == place.rank else f"(the interface that leads to {place.master.host})",
    )


def _typed_command(options: TrainOptions, place: Place, node: int) -> str:
    words = ["echelon", "train", str(options.recipe)]
    words += ["--run", str(options.run)] if options.run else []
    words += ["--as-before"] if options.as_before else []
    words += ["--workers", str(options.workers)] if options.workers else []
    words += ["--nodes", str(place.size), "--node-rank", str(node), "--master", str(place.master)]
    words += ["--secret-file", str(place.secret_file)] if place.secret_file else []
    return shlex.join([*words, *as_arguments(options.overrides)])


def as_arguments(overrides: Sequence[str]) -> list[str]:
    """Overrides as the command line takes them."""
    return [word for override in overrides for word in ("--set", override)]
