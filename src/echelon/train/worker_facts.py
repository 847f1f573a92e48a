"""What a worker measures of itself and of its host, and what it says of both when it starts."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import psutil
import torch

from echelon.monitor.interface_counters import open_counter
from echelon.monitor.meter import StepMeter
from echelon.monitor.records import RecordWriter
from echelon.monitor.sampler import HostSampler, SamplerThread
from echelon.resolve.peers import count_hosts
from echelon.train.loop import Training
from echelon.train.step_timing import device_name, matrix_product_flops

_PEAK_SECONDS = 0.05
_PEAK_SIZE = 512
_FLOPS_STEPS = 10


def open_meter(device: torch.device) -> StepMeter:
    """A stop watch for this worker's steps; the first worker of a host also counts the bytes at its card."""
    card = open_counter(cluster_card()) if _is_first_here() else None
    if device.type != "cuda":
        return StepMeter(card)
    return StepMeter(card, now=_mark_stream, between=_between_events)


def _mark_stream() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between_events(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def start_sampler(records: RecordWriter) -> SamplerThread | None:
    """Sample this host as long as this worker lives, if it is the host's first."""
    if not _is_first_here():
        return None
    return SamplerThread(HostSampler(socket.gethostname(), cluster_card()), records)


def cluster_card() -> str:
    """The network interface that leads to the other workers, as the launcher found it; loopback on one machine."""
    name = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME", "lo")
    return name.removeprefix("=").split(",")[0]


def _is_first_here() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


def describe_worker(training: Training) -> dict[str, Any]:
    """What an explanation of the run needs to know of this worker, for its `start` record. Collective."""
    device, steps = training.model.flat.weights.device, range(1, min(training.steps, _FLOPS_STEPS) + 1)
    return {
        "host": socket.gethostname(),
        "setup_seconds": round(time.time() - psutil.Process().create_time(), 3),
        "hosts": count_hosts(training.group),
        "hosts_given": int(os.environ.get("ECHELON_HOSTS", "1")),
        "local_rank": int(os.environ.get("LOCAL_RANK", "0")),
        "card": cluster_card(),
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "parameters": training.model.flat.size,
        "frozen_parameters": sum(
            p.numel() for p in training.model.module.parameters() if not p.requires_grad
        ),
        "exchanged_bytes": 4 * len(training.model.flat.reduced),
        "exchange": training.exchange.traits.name,
        "role": training.exchange.traits.role,
        "flops_per_step": sum(training.task.step_flops(step) for step in steps) // len(steps),
        "peak_flops": peak_flops(training),
    }


def peak_flops(training: Training) -> int:
    """FLOP/s of the fastest matrix product in a moment. A report takes the best of several such moments, of each start
    and each end: in one of them other programs may be using the machine."""
    device = training.model.flat.weights.device
    return round(matrix_product_flops(training.model.precision, device, _PEAK_SIZE, _PEAK_SECONDS))


def compare_workers(training: Training) -> str | None:
    """A warning if workers compute in different ways: then it matters to the bits who computes which slot, and the
    slowest is waited for. Collective."""
    device, threads = device_name(training.model.flat.weights.device), torch.get_num_threads()
    way = f"{training.task.kernels}, {threads} threads, {device}, torch {torch.__version__}"
    return describe_differences(training.group.gather_json([socket.gethostname(), way]))


def describe_differences(ways: list[list[str]]) -> str | None:
    """The warning, from (host, way to compute) of each worker; None if all have one way."""
    hosts: dict[str, dict[str, None]] = {}
    for host, way in ways:
        hosts.setdefault(way, {})[host] = None
    if len(hosts) < 2:
        return None
    told = "; ".join(f"{', '.join(names)}: {way}" for way, names in hosts.items())
    return f"workers do not compute alike: who computes what shows in the last bits of the weights. {told}"
