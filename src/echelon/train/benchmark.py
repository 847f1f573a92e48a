"""Measuring steps without saving anything, against what the machine's matrix products can do."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import torch

from echelon.train.loop import Training, take_step
from echelon.train.precision import Precision

WARM_UP_STEPS = 5
_PEAK_SECONDS = 0.5
_PEAK_SIZE = 1024


def measure_steps(training: Training, steps: int) -> dict[str, Any]:
    """Take steps and time them; the keys of `benchmark --json`. Collective."""
    training.model.train()
    peak = measure_peak(training)
    results, flops = [], 0
    for step in range(1, WARM_UP_STEPS + steps + 1):
        result = take_step(training, step)
        if step > WARM_UP_STEPS:
            results.append(result)
            flops += training.task.step_flops(step)
    seconds = sum(result.seconds for result in results)
    return {
        "steps": steps,
        "workers": training.group.size,
        "threads": torch.get_num_threads(),
        "precision": training.recipe.train.precision,
        "seconds_per_step": seconds / steps,
        "median_seconds_per_step": statistics.median(result.seconds for result in results),
        "tokens_per_second": sum(result.targets for result in results) / seconds,
        "flops_per_step": flops / steps,
        "peak_flops": peak,
        "peak_share": flops / seconds / peak,
    }


def measure_peak(training: Training) -> float:
    """FLOP/s of large matrix products in the recipe's number format, all workers at once. Collective."""
    training.group.barrier()
    mine = _matrix_product_flops(training.precision, training.flat.weights.device)
    return math.fsum(training.group.gather_json(mine))


def _matrix_product_flops(precision: Precision, device: torch.device) -> float:
    size = _PEAK_SIZE
    a, b = (torch.randn(size, size, device=device, dtype=precision.dtype) for _ in range(2))
    out = a @ b
    fastest = float("inf")
    deadline = time.perf_counter() + _PEAK_SECONDS
    while time.perf_counter() < deadline:
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * size**3 / fastest
