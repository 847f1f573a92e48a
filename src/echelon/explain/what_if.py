"""What-if predictions: a run's step time with one thing changed, from the run's own measurements."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from echelon.explain.clusters import Cluster
from echelon.explain.cost import EXCHANGES, PlannedExchange, predict
from echelon.explain.diagnosis import StepTime, Traffic
from echelon.explain.hardware import find_gpu_like, processor
from echelon.explain.history import History
from echelon.explain.profile import Profile
from echelon.explain.workload import Workload


@dataclass(frozen=True)
class Replanning:
    """A run as the cost model's input."""

    workload: Workload
    cluster: Cluster
    profile: Profile
    exchange: PlannedExchange
    """The one it used."""

    def seconds(self, *, exchange: PlannedExchange | None = None, times: int = 1) -> float:
        """Of a step with another exchange, or with `times` as many hosts (workers, on one machine)."""
        cluster = self.cluster
        if cluster.hosts > 1:
            cluster = cluster.resized(times * cluster.hosts)
        else:
            cluster = replace(cluster, per_host=times * cluster.per_host)
        return predict(self.workload, cluster, exchange or self.exchange, self.profile).seconds.expected


def replan(history: History, workload: Workload, time: StepTime, wire: Traffic) -> Replanning:
    """The cost model of a run, fitted to its own measurements."""
    return Replanning(
        workload, own_cluster(history, time, wire), own_profile(history, time), own_exchange(history)
    )


def own_exchange(history: History) -> PlannedExchange:
    """The run's exchange, under the plan's name for it: all exact sums have one name."""
    name = history.facts.get("exchange")
    return next((exchange for exchange in EXCHANGES if exchange == name), "all_reduce")


def own_profile(history: History, time: StepTime) -> Profile:
    """What this run itself measured, as a profile of its hardware."""
    slots_each = history.recipe.train.slots / len(history.workers)
    return Profile(
        slot_seconds=(time.input + time.compute) / slots_each,
        optimiser_seconds=time.optimiser,
        other_seconds=time.other + time.checkpoint,
        spread=0.03,
        seconds_per_step=time.seconds,
    )


def own_cluster(history: History, time: StepTime, wire: Traffic) -> Cluster:
    """The run's own hosts."""
    threads = float(history.facts.get("threads", 1))
    return Cluster(
        name="this cluster",
        hosts=history.num_hosts,
        per_host=max(1, history.size // history.num_hosts),
        device=find_gpu_like(str(history.facts.get("device", ""))) or processor(threads),
        line_bytes_per_s=line_rate(history, time, wire),
        cores=threads,
    )


def line_rate(history: History, time: StepTime, wire: Traffic) -> float:
    """Bytes per second, as measured before training or inferred from waiting times."""
    if history.link:
        return float(history.link["bytes_per_s"])
    moved = wire.measured or wire.expected
    return moved / time.network if moved and time.network else math.inf
