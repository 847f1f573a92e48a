"""Clusters for a plan: `4xg4dn.2xlarge`, `2x(2xV100, 1gbit)`, hosts that were probed, a lab."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass, replace

from echelon.cloud import prices
from echelon.errors import UserError
from echelon.explain.collectives import Fabric, Interconnect
from echelon.explain.hardware import Device, find_gpu, processor, suggest_gpus
from echelon.lab.rate import parse_rate

LINE_SHARE = 0.95
"""What is left of a line's rate after the headers of Ethernet, IP and TCP."""
LINE_LATENCY_S = 60e-6
"""A round of a collective over TCP: two kernels, a switch, and the library."""
INNER_LATENCY_S = 12e-6
CLOUD_FLOW_BYTES_PER_S = 5e9 / 8
"""AWS and others give a single connection 5 Gbit/s outside a placement group."""
NCCL_FLOWS = 4
"""Connections that NCCL opens for one edge of its ring over TCP."""
_WIDEST_LINE = (1e9 / 8, 25e9 / 8)
"""What comparable machines had, used if the line is unknown."""


@dataclass(frozen=True)
class Cluster:
    """A number of identical hosts."""

    name: str
    hosts: int
    per_host: int
    """Workers of a host: its GPUs, or one for all its cores."""
    device: Device
    line_bytes_per_s: float
    """As it is sold, or as it was measured, in each direction."""
    cores: float
    """Of one host, for input."""
    hourly: float | None = None
    """US dollars for one host."""
    priced_by: prices.Provider | None = None
    """The provider whose price list `hourly` is from."""
    flow_bytes_per_s: float = float("inf")
    line_range: tuple[float, float] | None = None
    """Where the line's rate is not known: the lowest and the highest it may be, in bytes a second."""
    inner_bytes_per_s: float | None = None
    """Between workers of a host, if it differs from what such devices usually have."""
    latency_s: float = LINE_LATENCY_S

    @property
    def workers(self) -> int:
        return self.hosts * self.per_host

    def fabric(self, line_factor: float = 1.0) -> Fabric:
        """How its workers are connected, with the network rate scaled by `line_factor`."""
        rate = self.line_bytes_per_s * LINE_SHARE * line_factor
        inner = self.inner_bytes_per_s or self.device.inner_bytes_per_s
        return Fabric(
            self.hosts,
            self.per_host,
            Interconnect(rate, self.latency_s, self.flow_bytes_per_s),
            Interconnect(inner, INNER_LATENCY_S),
            flows=NCCL_FLOWS if self.device.is_gpu else 1,
        )

    def resized(self, hosts: int) -> Cluster:
        return replace(self, hosts=hosts)

    def alone(self) -> Cluster:
        """One of its workers, alone."""
        return replace(self, hosts=1, per_host=1, cores=self.cores / self.per_host)


def parse_cluster(spec: str) -> Cluster:
    """The cluster that `--on` describes; UserError if it describes none."""
    match = re.fullmatch(r"(?:(\d+)\s*[x×]\s*)?(.+)", spec.strip())
    hosts, what = (int(match[1] or 1), match[2].strip()) if match else (0, "")
    if not 1 <= hosts <= 100_000:
        raise UserError(f"--on {spec!r}: write it as 4xg4dn.2xlarge or as '2x(2xV100, 1gbit)'")
    if what.startswith("(") and what.endswith(")"):
        return _parse_parts(spec, hosts, what[1:-1])
    return _find_machine(spec, hosts, what)


_MOST_NEAR = 8


def _find_machine(spec: str, hosts: int, name: str) -> Cluster:
    known = prices.all_machines()
    found = known.get(name)
    if found is None:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        family = [each for each in known if each.partition(".")[0] == name.partition(".")[0]]
        hint = f"did you mean {near[0]}? " if near else "it is not in the price list; "
        hint += f"The list has {', '.join(family[:_MOST_NEAR])}; otherwise " if near and family else ""
        raise UserError(
            f"--on {spec!r}: {hint}use 4xg4dn.2xlarge, '2x(2xV100, 1gbit)', a hostfile, or lab:NAME"
        )
    cores = found.vcpus / 2  # two threads of a core share what it can compute
    device = find_gpu(found.gpu) if found.gpu else None
    if found.gpu and device is None:
        raise UserError(f"--on {spec!r}: the list of hardware has no GPU {found.gpu!r}; add it")
    return Cluster(
        name=spec.strip(),
        hosts=hosts,
        per_host=max(1, found.gpus),
        device=device or processor(cores, found.memory_bytes),
        line_bytes_per_s=found.network_bytes_per_s,
        cores=float(found.vcpus),
        hourly=found.busy_hourly,
        priced_by=prices.provider_with(name),
        flow_bytes_per_s=CLOUD_FLOW_BYTES_PER_S,
    )


def _parse_parts(spec: str, hosts: int, text: str) -> Cluster:
    """`2xV100, 1gbit`: devices, then the line's rate and what a host costs, in any order."""
    first, *rest = [part.strip() for part in text.split(",")]
    match = re.fullmatch(r"(?:(\d+(?:\.\d+)?)\s*[x×]\s*)?(.+)", first)
    assert match is not None
    count, name = float(match[1] or 1), match[2]
    rates = [part for part in rest if part.endswith("bit")]
    costs = [match[1] for part in rest if (match := re.fullmatch(r"\$(\d+(?:\.\d+)?)(?:/h)?", part))]
    if len(rates) + len(costs) != len(rest) or len(rates) > 1 or len(costs) > 1 or not count:
        raise UserError(
            f"--on {spec!r}: after the devices come a line rate, as 1gbit, and a price, as $2.5/h"
        )
    device, per_host, cores = _find_devices(spec, name, count)
    return Cluster(
        name=spec.strip(),
        hosts=hosts,
        per_host=per_host,
        device=device,
        line_bytes_per_s=parse_rate(rates[0]) / 8 if rates else math.sqrt(math.prod(_WIDEST_LINE)),
        cores=cores,
        hourly=float(costs[0]) if costs else None,
        line_range=None if rates or hosts == 1 else _WIDEST_LINE,
    )


def _find_devices(spec: str, name: str, count: float) -> tuple[Device, int, float]:
    """The device, how many workers have one, and the host's cores."""
    if name.lower() in ("cpu", "cpus", "core", "cores"):
        return processor(count), 1, count
    device = find_gpu(name)
    if device is None:
        raise UserError(f"--on {spec!r}: there is no GPU {name!r} in the list; it has {suggest_gpus(name)}")
    if count != int(count):
        raise UserError(f"--on {spec!r}: {count:g} GPUs are no whole number of them")
    return device, int(count), 8.0 * count
