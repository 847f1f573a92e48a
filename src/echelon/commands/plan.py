"""`plan`: the clusters that --on names, probed if they can be reached, and what the recipe would take on each."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.cloud.prices import age_warning, price_list
from echelon.commands.prepare import find_data
from echelon.errors import UserError
from echelon.explain.clusters import Cluster, parse_cluster
from echelon.explain.description import describe_recipe
from echelon.explain.hardware import Device, find_gpu_like, processor
from echelon.explain.plan import (
    ClusterPlan,
    SweepPoint,
    format_plan,
    format_sweep,
    parse_sweep,
    plan_cluster,
    sweep,
    sweep_chart,
)
from echelon.explain.profile import Profile, load_profile, profile_of
from echelon.explain.sheet import standalone_svg, to_png
from echelon.explain.workload import Workload, recipe_workload
from echelon.lab.rate import parse_rate
from echelon.lab.registry import find_plan
from echelon.launch.check import HostReport, check_hosts
from echelon.launch.findings import Needs
from echelon.launch.hosts import load_hosts
from echelon.launch.machine import Machine, describe_machine
from echelon.launch.ssh import Remote, find_config
from echelon.recipe.loading import load_recipe

_PROFILE_STEPS = 20


@dataclass(frozen=True)
class PlanOptions:
    """Options of `plan`."""

    recipe: Path
    clusters: Sequence[str]
    overrides: Sequence[str] = ()
    profile: str | None = None
    """A file, or "here" to measure on this machine now."""
    sweep: str | None = None
    weak: bool = False
    """Every worker does the recipe's whole step: the global batch grows with the cluster."""
    ssh_config: Path | None = None
    hourly: float | None = None
    """What a host costs, in place of the list's price."""


@dataclass(frozen=True)
class Plan:
    """What `plan --json` prints."""

    workload: Workload
    clusters: list[ClusterPlan]
    sweeps: dict[str, list[SweepPoint]]
    profile: Profile | None
    unprofiled: list[str]
    """Clusters that the profile does not apply to, because their devices differ."""
    warnings: list[str]
    """About devices that compute the recipe's format slowly, and the price lists that were used."""

    def to_text(self, width: int | None = None) -> str:
        """Text for people, with tables that fit `width`."""
        counted = self.profile is not None and len(self.unprofiled) < len(self.clusters)
        parts = [
            format_plan(self.clusters, self.workload, counted, width),
            *map(self._format_unprofiled, self.unprofiled),
        ]
        parts += self.warnings
        parts += ["\n" + format_sweep(points, name, width) for name, points in self.sweeps.items()]
        return "\n".join(parts)

    def _format_unprofiled(self, name: str) -> str:
        assert self.profile is not None
        return (
            f"{name}: computed from data sheets, as the profile was measured on something else "
            f"({self.profile.device}, {self.profile.threads} threads)."
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.workload.name,
            "flops_per_step": self.workload.training_flops,
            "gradient_bytes": self.workload.gradient_bytes,
            "steps": self.workload.steps,
            "profile": dataclasses.asdict(self.profile) if self.profile else None,
            "unprofiled": self.unprofiled,
            "warnings": self.warnings,
            "clusters": [dataclasses.asdict(cluster) for cluster in self.clusters],
            "sweeps": {name: [dataclasses.asdict(p) for p in points] for name, points in self.sweeps.items()},
        }


def make_plan(options: PlanOptions, console: Console) -> Plan:
    """Predict the recipe on every cluster."""
    recipe = load_recipe(options.recipe, options.overrides)
    prepared = find_data(recipe, options.recipe.parent)
    workload = recipe_workload(recipe, prepared, describe_recipe(recipe, prepared))
    hosts = parse_sweep(options.sweep) if options.sweep else []
    clusters = [find_cluster(spec, options) for spec in options.clusters or ["here"]]
    profile = _profile(options, workload.slots, console)
    plans, sweeps, unprofiled = [], {}, []
    for cluster in clusters:
        own = profile if profile is not None and _fits(profile, cluster, options) else None
        whole = grown(workload, cluster.workers) if options.weak else workload
        plans.append(plan_cluster(whole, cluster, own))
        sweeps[cluster.name] = _sweep(workload, cluster, hosts, own, options.weak)
        unprofiled += [cluster.name] if profile is not None and own is None else []
    warnings = [
        *precision_warnings(clusters, recipe.train.precision),
        *price_warnings(clusters, datetime.date.today()),
    ]
    return Plan(workload, plans, sweeps if hosts else {}, profile, unprofiled, warnings)


def precision_warnings(clusters: Sequence[Cluster], precision: str) -> list[str]:
    """Warnings about GPUs that are planned in 16 bits, and compute the 16 bits of the recipe much more slowly."""
    names = {cluster.device.name: None for cluster in clusters if not cluster.device.has_bf16}
    return [
        f"warning: {name} has no units for bf16 and computes it slowly: its figures are those of "
        "--set train.precision=fp16"
        for name in names
        if precision == "bf16"
    ]


def price_warnings(clusters: Sequence[Cluster], today: datetime.date) -> list[str]:
    """Warnings about the price lists that the clusters' prices are from."""
    providers = {cluster.priced_by: None for cluster in clusters if cluster.priced_by}
    warnings = (age_warning(provider, price_list(provider), today) for provider in providers)
    return [warning for warning in warnings if warning]


def _fits(profile: Profile, cluster: Cluster, options: PlanOptions) -> bool:
    """Whether a profile applies to a cluster; one measured here applies to this machine."""
    return options.profile == cluster.name == "here" or profile.fits(cluster)


def draw_sweep(plan: Plan, path: Path) -> None:
    """Write the scaling curves of the first cluster as a picture."""
    if len(plan.sweeps) > 1:
        raise UserError("--chart draws one cluster; name one with --on")
    ((name, points),) = plan.sweeps.items()
    sheet = sweep_chart(points, name)
    content = to_png(sheet) if path.suffix == ".png" else standalone_svg(sheet).encode()
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def _sweep(
    workload: Workload, cluster: Cluster, hosts: Sequence[int], profile: Profile | None, weak: bool
) -> list[SweepPoint]:
    points = []
    for count in hosts:
        grows = count * cluster.per_host if weak else 1
        points += sweep(grown(workload, grows), cluster, [count], profile)
    return points


def grown(workload: Workload, times: int) -> Workload:
    """A step with `times` the work, in `times` as many slots."""
    layers = tuple(dataclasses.replace(layer, flops=layer.flops * times) for layer in workload.layers)
    return dataclasses.replace(
        workload,
        layers=layers,
        slots=workload.slots * times,
        objects=workload.objects * times,
        input_core_s=workload.input_core_s * times,
    )


def find_cluster(spec: str, options: PlanOptions) -> Cluster:
    """The cluster that one `--on` means: this machine, a lab, hosts probed over SSH, or a description."""
    if spec == "here":
        cluster = _this_machine()
    elif spec == "lab" or spec.startswith("lab:"):
        cluster = _lab(spec)
    elif Path(spec).is_file():
        cluster = _ask_hosts(spec, options.ssh_config)
    else:
        cluster = parse_cluster(spec)
    if options.hourly is not None:
        return dataclasses.replace(cluster, hourly=options.hourly, priced_by=None)
    return cluster


def _this_machine() -> Cluster:
    machine = describe_machine()
    device, workers = _devices(machine)
    return Cluster("here", 1, workers, device, 1e9, float(machine.cores))


def _devices(machine: Machine) -> tuple[Device, int]:
    """The device of a machine's workers, and how many there are."""
    if not machine.gpus:
        return processor(machine.cores, machine.memory_bytes), 1
    name = machine.gpus[0].name
    device = find_gpu_like(name)
    if device is None:
        raise UserError(
            f"the list of hardware has no GPU {name!r}; add it to a list of your own (ECHELON_HARDWARE)"
        )
    return device, len(machine.gpus)


def _lab(spec: str) -> Cluster:
    name = spec.partition(":")[2] or "lab"
    plan = find_plan(name)
    if plan is None:
        raise UserError(f"--on {spec}: there is no lab {name!r}; `echelon lab up` makes one")
    rates = [parse_rate(rate) for rate in plan.rates.values()]
    return Cluster(spec, len(rates), 1, processor(plan.cpus), min(rates) / 8, plan.cpus)


def _ask_hosts(file: str, ssh_config: Path | None) -> Cluster:
    hosts = load_hosts(Path(file))
    config = find_config(ssh_config)
    remotes = {host.name: Remote(host.name, config) for host in hosts}
    try:
        reports = check_hosts(hosts, remotes, Needs())
    finally:
        for remote in remotes.values():
            remote.close()
    return _asked_cluster(file, reports)


def _asked_cluster(file: str, reports: Sequence[HostReport]) -> Cluster:
    """The cluster of the hosts that answered; the slowest one decides."""
    silent = [report.host.name for report in reports if report.facts is None]
    if silent:
        raise UserError(
            f"--on {file}: {', '.join(silent)} did not answer; `echelon doctor --hostfile {file}` says why"
        )
    machines = [report.facts.machine for report in reports if report.facts]
    device, workers = min(map(_devices, machines), key=lambda found: found[0].float32_flops * found[1])
    link = reports[0].link
    rate = link.bytes_per_s if link else 1e9 / 8
    return Cluster(file, len(reports), workers, device, rate, float(min(m.cores for m in machines)))


def _profile(options: PlanOptions, slots: int, console: Console) -> Profile | None:
    if options.profile is None:
        return None
    if options.profile != "here":
        return load_profile(Path(options.profile), slots)
    from echelon.commands.benchmark import benchmark
    from echelon.commands.training import TrainOptions
    from echelon.recipe.workers import parse_workers

    measured = benchmark(
        TrainOptions(options.recipe, None, parse_workers(1), list(options.overrides)), _PROFILE_STEPS, console
    )
    return profile_of(measured, slots)
