"""Measuring steps without saving anything, against what the machine's matrix products can do."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import resource
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from echelon.monitor.meter import PHASES
from echelon.train.loop import Training, take_step
from echelon.train.precision import Precision

_PEAK_SECONDS = 0.5
_PEAK_SIZE = 1024


def measure_steps(training: Training, steps: int, warm_up_steps: int) -> dict[str, Any]:
    """Take steps and time them; the keys of `benchmark --json`. Collective."""
    training.model.module.train()
    peak = measure_peak(training)
    results, flops = [], 0
    phases: Counter[str] = Counter()
    for step in range(1, warm_up_steps + steps + 1):
        result = take_step(training, step)
        measured = training.meter.take()
        if step > warm_up_steps:
            results.append(result)
            phases.update(measured["phases"])
            flops += training.task.step_flops(step)
            training.meter.take()  # counting FLOPs is not part of the next step
    training.exchange.settle()  # a worker of parameter servers may still wait for one that is at its end
    seconds = sum(result.seconds for result in results)
    # Other programs may have used the machine during one measurement; a peak is never less than what was reached.
    peak = max(peak, measure_peak(training), flops / seconds)
    return {
        "steps": steps,
        "workers": training.group.size,
        "device": device_name(training.model.flat.weights.device),
        "threads": torch.get_num_threads(),
        "precision": training.recipe.train.precision,
        "kernels": training.task.kernels,
        "seconds_per_step": seconds / steps,
        "median_seconds_per_step": statistics.median(result.seconds for result in results),
        "spread": statistics.pstdev(result.seconds for result in results) / (seconds / steps),
        f"{training.task.unit}_per_second": sum(result.targets for result in results) / seconds,
        "flops_per_step": flops / steps,
        "peak_flops": peak,
        "peak_share": flops / seconds / peak,
        **_memory(training.model.flat.weights.device),
        "breakdown": {phase: phases[phase] / steps for phase in PHASES},
    }


def _memory(device: torch.device) -> dict[str, int | None]:
    """The most that this worker took, and what its GPU has for it; without one, workers share what the machine has."""
    if device.type == "cuda":
        workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        whole = torch.cuda.get_device_properties(device).total_memory
        held = gpu_share(whole, workers, torch.cuda.device_count())
        return {"memory_bytes": torch.cuda.max_memory_reserved(device), "gpu_memory_bytes": held}
    return {"memory_bytes": most_resident_bytes(), "gpu_memory_bytes": None}


def gpu_share(memory_bytes: int, workers: int, gpus: int) -> int:
    """The memory that a worker has of its GPU, as the workers of a host share its GPUs evenly."""
    return memory_bytes // math.ceil(workers / gpus)


def most_resident_bytes() -> int:
    """The most memory that this program ever had: VmHWM, as `ru_maxrss` is at least what its parent had had."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def device_name(device: torch.device) -> str:
    """A GPU as its driver calls it, or the processor's model."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "CPU"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")


def measure_peak(training: Training) -> float:
    """FLOP/s of large matrix products in the recipe's number format, all workers at once. Collective."""
    training.group.barrier()
    mine = matrix_product_flops(
        training.model.precision, training.model.flat.weights.device, _PEAK_SIZE, _PEAK_SECONDS
    )
    return math.fsum(training.group.gather_json(mine))


def matrix_product_flops(precision: Precision, device: torch.device, size: int, seconds: float) -> float:
    """FLOP/s of the fastest of the square products that fit into `seconds`."""
    a, b = (torch.randn(size, size, device=device, dtype=precision.dtype) for _ in range(2))
    out = a @ b
    fastest = float("inf")
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * size**3 / fastest
