"""The cost model: how long a step takes on a cluster, where that time goes, and the error bounds.

A step is this worker's slots forward and backward, one after the other; in the last of them gradients go out as
backward finishes them. What the network has not done by then is waited for, and the optimiser follows.

    step = max(input, loading + compute + exposed communication + waiting for the slowest + optimiser)

What cannot be known before makes the answer a range (uncertainty.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from echelon.explain.clusters import Cluster
from echelon.explain.collectives import (
    Algorithm,
    Cost,
    Fabric,
    ReadyBuffer,
    collective_cost,
    exposed_seconds,
)
from echelon.explain.profile import Profile
from echelon.explain.uncertainty import Estimate, Range, Scenario, find_range, scenarios
from echelon.explain.workload import WIRE_BYTES, Workload
from echelon.recipe import schema

PlannedExchange = Literal["all_reduce", "compressed", "low_rank", "local", "parameter_server"]
EXCHANGES: tuple[PlannedExchange, ...] = ("all_reduce", "compressed", "low_rank", "local", "parameter_server")

EFFICIENCY: dict[str, float] = {
    "gpu float32": 0.159,
    "gpu half": 0.10,
    "cpu float32": 0.45,
    "cpu half": 0.40,
}
"""What share of its peak a device reaches in whole training steps. `gpu float32` is fitted on the published run that
is marked for calibration (tests/explain/test_published.py); `gpu half` is what frameworks of those years reached; the
others are this engine's on a CPU, where `echelon benchmark` says it of a machine as `peak_share`."""
_STEP_OVERHEAD_S = {True: 0.010, False: 0.002}
"""Starting kernels and Python, on a GPU and on a processor."""
_COPY_BYTES_PER_S = 4e9
"""Of a checkpoint's snapshot, which training waits for."""


@dataclass(frozen=True)
class StepCost:
    """One step's seconds by cause."""

    compute: float
    """Forward and backward of the slots that the busiest worker has."""
    loading: float
    """Of those slots, unless the profile counts it as computing."""
    communication: float
    """Exposed: after backward's end."""
    waiting: float
    """For the slowest worker."""
    optimiser: float
    other: float
    input: float
    """Making the next step's input ready, meanwhile."""

    @property
    def busy(self) -> float:
        return self.compute + self.loading + self.communication + self.waiting + self.optimiser + self.other

    @property
    def seconds(self) -> float:
        return max(self.busy, self.input)

    @property
    def bound(self) -> str:
        """The resource that limits a step."""
        if self.input > self.busy:
            return "input"
        parts = {
            "compute": self.compute + self.optimiser,
            "input": self.loading,
            "network": self.communication,
            "stragglers": self.waiting,
            "overhead": self.other,
        }
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Prediction:
    """How one exchange performs for a workload on a cluster."""

    exchange: PlannedExchange
    algorithm: Algorithm
    range: Range
    """Of the step's time."""
    cost: StepCost
    bytes_per_step: float
    """Received, and sent, by each host's card, on average."""
    efficiency: float
    """Work done by each worker, against one worker alone."""

    @property
    def seconds(self) -> Estimate:
        return self.range.seconds


def predict(
    workload: Workload,
    cluster: Cluster,
    exchange: PlannedExchange = "all_reduce",
    profile: Profile | None = None,
) -> Prediction:
    """A step on the cluster; all-reduce uses the fastest algorithm there."""
    good, expected, bad = scenarios(cluster, workload.number_format, profile)
    algorithm = best_algorithm(workload, cluster, exchange, profile)

    def cost_of(luck: Scenario) -> StepCost:
        return step_cost(workload, cluster, exchange, algorithm, profile=profile, luck=luck)

    cost = cost_of(expected)
    alone = step_cost(workload, cluster.alone(), "all_reduce", "ring", profile=profile, luck=expected)
    share = collective_cost(algorithm, _fabric(workload, cluster)).card_bytes_per_byte
    return Prediction(
        exchange=exchange,
        algorithm=algorithm,
        range=find_range(lambda luck: cost_of(luck).seconds, good, expected, bad),
        cost=cost,
        bytes_per_step=share * exchanged_bytes(workload, exchange) / steps_between(workload, exchange),
        efficiency=alone.seconds / (cluster.workers * cost.seconds),
    )


def is_exact(exchange: PlannedExchange, settings: schema.ExchangeSettings) -> bool:
    """Whether the result is the same as one worker's."""
    if exchange == "parameter_server":
        return settings.synchronous and not settings.backup_workers
    return exchange == "all_reduce"


def best_algorithm(
    workload: Workload, cluster: Cluster, exchange: PlannedExchange, profile: Profile | None
) -> Algorithm:
    """Echelon's own all-reduce, or the library's: a ring, or on GPUs the fastest of NCCL's algorithms."""
    if exchange == "parameter_server":
        return "parameter_server"
    if workload.settings.hierarchical and min(cluster.hosts, cluster.per_host) > 1:
        return "hierarchical"
    if exchange in ("compressed", "low_rank", "local") or _is_shared_out(workload, exchange):
        return "all_to_all"
    if not cluster.device.is_gpu:
        return "ring"
    choices: tuple[Algorithm, ...] = ("ring", "tree")
    return min(
        choices,
        key=lambda name: (
            step_cost(workload, cluster, exchange, name, profile=profile, luck=Scenario()).seconds
        ),
    )


def step_cost(
    workload: Workload,
    cluster: Cluster,
    exchange: PlannedExchange,
    algorithm: Algorithm,
    *,
    profile: Profile | None = None,
    luck: Scenario,
) -> StepCost:
    """One step in a scenario: a quantile of every uncertain factor."""
    fabric = _fabric(workload, cluster, luck.line)
    training = fabric.size - fabric.serving if exchange == "parameter_server" else cluster.workers
    slots = math.ceil(workload.slots / training)
    slot_s = _slot_seconds(workload, cluster, profile) * luck.compute
    compute = slots * slot_s
    cost = collective_cost(algorithm, fabric)
    optimiser, other = _fixed_seconds(workload, cluster, profile)
    per_core = workload.input_core_s / cluster.hosts / cluster.cores
    return StepCost(
        compute=compute,
        loading=0.0 if profile else slots * workload.loading_core_s / workload.slots * luck.input,
        communication=_exposed(workload, exchange, cost, slots, slot_s),
        waiting=compute * luck.imbalance * _expected_maximum(min(cluster.workers, workload.slots)),
        optimiser=optimiser * luck.compute + _exchange_compute(workload, cluster, exchange, luck),
        other=other,
        input=per_core * luck.input,
    )


def _fabric(workload: Workload, cluster: Cluster, line: float = 1.0) -> Fabric:
    return replace(cluster.fabric(line), servers=workload.settings.servers)


def exchanged_bytes(workload: Workload, exchange: PlannedExchange) -> float:
    """Bytes that one exchange sums over the workers."""
    match exchange:
        case "compressed":
            return workload.parameters * WIRE_BYTES[workload.settings.wire]
        case "local":
            return workload.parameters * WIRE_BYTES[workload.settings.outer_wire]
        case "low_rank":
            return workload.low_rank_bytes
        case "all_reduce" | "parameter_server":
            return workload.gradient_bytes


def steps_between(workload: Workload, exchange: PlannedExchange) -> int:
    """Steps from one exchange to the next."""
    return workload.settings.every if exchange == "local" else 1


def _slot_seconds(workload: Workload, cluster: Cluster, profile: Profile | None) -> float:
    """Forward and backward of one slot on one worker."""
    if profile is not None:
        return profile.slot_seconds
    return workload.training_flops / workload.slots / reached_flops(workload, cluster)


def reached_flops(workload: Workload, cluster: Cluster) -> float:
    """FLOP/s of one worker in whole steps."""
    kind = f"{'gpu' if cluster.device.is_gpu else 'cpu'} {workload.number_format}"
    return cluster.device.peak(workload.number_format) * EFFICIENCY[kind]


def _fixed_seconds(workload: Workload, cluster: Cluster, profile: Profile | None) -> tuple[float, float]:
    """The optimiser, and every other cost that does not depend on the number of slots."""
    if profile is not None:
        return profile.optimiser_seconds, profile.other_seconds
    # The optimiser reads and writes every number it keeps, and reads the gradient.
    touched = workload.gradient_bytes * (2 * workload.optimiser_numbers + 1)
    if workload.shares_optimiser:
        touched /= cluster.workers
    return touched / cluster.device.memory_bytes_per_s, _STEP_OVERHEAD_S[cluster.device.is_gpu]


def _is_shared_out(workload: Workload, exchange: PlannedExchange) -> bool:
    """Whether workers update a part of the weights each."""
    return exchange == "all_reduce" and workload.shares_optimiser


def _exposed(workload: Workload, exchange: PlannedExchange, cost: Cost, slots: int, slot_s: float) -> float:
    """The part of the exchange that does not overlap with computing."""
    match exchange:
        case "all_reduce" if workload.shares_optimiser:
            # Gradients go out behind backward; the weights, as many bytes, come back after the update.
            half = replace(cost, latency_s=cost.latency_s / 2, seconds_per_byte=cost.seconds_per_byte / 2)
            return exposed_seconds(ready_buffers(workload, slot_s), half) + half.seconds(
                workload.gradient_bytes
            )
        case "all_reduce" | "compressed":
            shrunk = exchanged_bytes(workload, exchange) / workload.gradient_bytes
            return exposed_seconds(ready_buffers(workload, slot_s, shrunk), cost)
        case "low_rank":
            # Two rounds, of which the second needs the first.
            return cost.seconds(exchanged_bytes(workload, exchange), buffers=2)
        case "local":
            hidden = workload.settings.overlap * slots * slot_s
            late = max(0.0, cost.seconds(exchanged_bytes(workload, exchange)) - hidden)
            return late / workload.settings.every
        case "parameter_server":
            return cost.seconds(exchanged_bytes(workload, exchange))


def ready_buffers(workload: Workload, slot_s: float, shrunk: float = 1.0) -> list[ReadyBuffer]:
    """The buckets of the last slot's gradient, in the order in which backward fills them.

    Backward is two thirds of a slot and spread over the layers by their FLOPs.
    """
    buffers, seconds, size, bucket = [], 0.0, 0.0, workload.settings.bucket_bytes
    backward_s = 2 / 3 * slot_s / workload.forward_flops
    for layer in workload.layers:
        seconds += layer.flops * backward_s
        left = layer.gradient_bytes * shrunk
        while size + left >= bucket:
            buffers.append(ReadyBuffer(seconds, bucket))
            left, size, seconds = size + left - bucket, 0.0, 0.0
        size += left
    return [*buffers, ReadyBuffer(seconds, size)]


def _exchange_compute(
    workload: Workload, cluster: Cluster, exchange: PlannedExchange, luck: Scenario
) -> float:
    """The exchange's own computation on the device."""
    memory = cluster.device.memory_bytes_per_s
    if cluster.workers == 1:
        return 0.0
    match exchange:
        case "compressed":
            return 1.5 * workload.gradient_bytes / memory * luck.compute
        case "low_rank":
            # Two products of every matrix with its factors, and the error that is kept for the next step.
            flops = sum(6 * rows * columns * workload.settings.rank for rows, columns in workload.matrices)
            return (
                flops / reached_flops(workload, cluster) + 4 * workload.gradient_bytes / memory
            ) * luck.compute
        case "all_reduce" | "local" | "parameter_server":
            return 0.0


def _expected_maximum(workers: int) -> float:
    """By how many standard deviations the slowest of N workers is expected to lag the mean (normal distribution)."""
    if workers <= 1:
        return 0.0
    root = math.sqrt(2 * math.log(workers))
    return max(0.56, root - (math.log(math.log(workers)) + math.log(4 * math.pi)) / (2 * root))


def checkpoint_seconds(workload: Workload, workers: int) -> float:
    """Seconds that each checkpoint adds to a run: only the snapshot, shared by the workers."""
    return workload.checkpoint_bytes(workers) / workers / _COPY_BYTES_PER_S


def memory_bytes(workload: Workload, workers: int) -> float:
    """A worker's memory: weights, optimiser state, gradients, and one slot's activations."""
    half_copy = 0.5 if workload.number_format == "half" else 0.0
    kept = (workload.optimiser_numbers - 1) / (workers if workload.shares_optimiser else 1)
    held = workload.gradient_bytes * (1 + kept + 1 + half_copy)
    activations = workload.activation_bytes * (0.5 if workload.number_format == "half" else 1.0)
    return held + activations
