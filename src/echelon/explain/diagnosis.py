"""What a run's measurements mean: where a step's time goes, stragglers, expected and measured traffic."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass

from echelon.explain.collectives import Algorithm, Fabric, Interconnect, collective_cost
from echelon.explain.cost import EXCHANGES, exchanged_bytes, steps_between
from echelon.explain.history import History, Worker
from echelon.explain.workload import Workload
from echelon.recipe.workers import share_of

SLOWER = 1.15
"""How much longer than the others a worker must be busy to be called a straggler."""
_MOSTLY = 0.6
"""In what share of the steps."""
_FREE = Interconnect(float("inf"), 0.0)


@dataclass(frozen=True)
class StepTime:
    """The mean step of the whole group, in seconds by cause."""

    input: float
    compute: float
    network: float
    """Exposed communication of the worker that waits least: the others wait for more than the network."""
    stragglers: float
    """How long the others wait for it beyond that."""
    optimiser: float
    checkpoint: float
    other: float
    is_local: bool = False
    """Whether all workers are on one machine, so that no network is between them."""

    def to_json(self) -> dict[str, float]:
        """Seconds by cause, for programs."""
        found = dataclasses.asdict(self)
        del found["is_local"]
        return found

    @property
    def exchange_label(self) -> str:
        """What the waiting that no worker is spared is called."""
        return "exchanging gradients" if self.is_local else "waiting for the network"

    def parts(self) -> dict[str, float]:
        return {
            "computing": self.compute + self.optimiser,
            self.exchange_label: self.network,
            "waiting for data": self.input,
            "waiting for slower workers": self.stragglers,
            "checkpoints": self.checkpoint,
            "other": self.other,
        }

    @property
    def seconds(self) -> float:
        return sum(self.parts().values())

    @property
    def bound(self) -> str:
        """compute, network (exchange on one machine), input or stragglers: the largest."""
        causes = {
            "compute": self.compute + self.optimiser,
            "exchange" if self.is_local else "network": self.network,
            "input": self.input,
            "stragglers": self.stragglers,
        }
        return max(causes, key=lambda name: causes[name])


def step_time(history: History) -> StepTime:
    """Means over steps and workers."""
    workers = history.workers

    def mean(phase: str) -> float:
        return statistics.fmean(worker.mean_phase(phase) for worker in workers)

    least, exposed = _communication(workers)
    return StepTime(
        input=mean("data"),
        compute=mean("forward") + mean("backward"),
        network=least,
        stragglers=max(0.0, exposed - least),
        optimiser=mean("optimiser"),
        checkpoint=mean("checkpoint"),
        other=mean("other"),
        is_local=history.num_hosts == 1,
    )


def _communication(workers: list[Worker]) -> tuple[float, float]:
    """Mean waiting of the worker that comes last in a step, which waits only for the network, and of all of them."""
    by_step: dict[int, list[float]] = {}
    for worker in workers:
        for step in worker.typical():
            by_step.setdefault(step["step"], []).append(step["phases"].get("communication", 0.0))
    whole = [values for values in by_step.values() if len(values) == len(workers)]
    if not whole:
        return 0.0, statistics.fmean(worker.mean_phase("communication") for worker in workers)
    means = [statistics.fmean(values) for values in whole]
    return statistics.fmean(min(values) for values in whole), statistics.fmean(means)


@dataclass(frozen=True)
class Straggler:
    """A worker that the others wait for."""

    worker: Worker
    slower: float
    """Its busy time for a slot against the median of the others."""
    share: float
    """In what share of the steps it was the last."""


def find_last(history: History) -> Straggler | None:
    """The worker that is the last in most of the steps, whether or not it is slow: it may have more slots."""
    shares = {worker.rank: _last_share(history, worker) for worker in history.workers}
    last = max(history.workers, key=lambda worker: shares[worker.rank])
    if len(history.workers) < 2 or shares[last.rank] <= _MOSTLY:
        return None
    return Straggler(last, _slower(history, last), shares[last.rank])


def find_straggler(history: History) -> Straggler | None:
    """The worker that holds the others up, if it is consistently the same one and by enough to matter."""
    if len(history.workers) < 2:
        return None
    slowest = max(history.workers, key=lambda worker: _seconds_a_slot(history, worker))
    slower = _slower(history, slowest)
    share = _last_share(history, slowest)
    return Straggler(slowest, slower, share) if slower > SLOWER and share > _MOSTLY else None


def _slower(history: History, worker: Worker) -> float:
    """A worker's busy time for a slot against the median of the others."""
    others = [_seconds_a_slot(history, other) for other in history.workers if other.rank != worker.rank]
    typical = statistics.median(others)
    return _seconds_a_slot(history, worker) / typical if typical else 1.0


def _seconds_a_slot(history: History, worker: Worker) -> float:
    """Busy seconds per slot it computes: workers may have different numbers of slots."""
    slots = num_slots_of(history, worker)  # below 1 if slots are dealt, and it has none in some steps
    return worker.busy_seconds() / slots if slots else worker.busy_seconds()


def num_slots_of(history: History, worker: Worker) -> float:
    """How many slots of a step a worker computes, on average: all of them if workers step independently."""
    recipe = history.recipe
    if recipe.train.exchange == "parameter_server" and not recipe.exchange.synchronous:
        return recipe.train.slots
    dealt = [step["slots"] for step in worker.typical() if "slots" in step]
    return statistics.fmean(dealt) if dealt else _even_share(history, worker)


def _even_share(history: History, worker: Worker) -> int:
    return len(share_of(history.recipe.train.slots, history.workers.index(worker), history.size))


def seconds_of_even_shares(history: History) -> float | None:
    """How much longer a step would take if every worker had as many slots; None if they are not dealt by speed."""
    dealt = [num_slots_of(history, worker) for worker in history.workers]
    even = [_even_share(history, worker) for worker in history.workers]
    if all(abs(one - other) < 1 for one, other in zip(dealt, even, strict=True)):
        return None
    seconds = [_seconds_a_slot(history, worker) for worker in history.workers]
    longest = [
        max(count * each for count, each in zip(shares, seconds, strict=True)) for shares in (even, dealt)
    ]
    return longest[0] - longest[1]


def _last_share(history: History, worker: Worker) -> float:
    """In what share of the steps this worker waited least for the others."""
    waits = {
        each.rank: {step["step"]: step["phases"].get("communication", 0.0) for step in each.typical()}
        for each in history.workers
    }
    own = waits.pop(worker.rank)
    counted = [step for step in own if all(step in other for other in waits.values())]
    last = sum(all(own[step] <= other[step] for other in waits.values()) for step in counted)
    return last / len(counted) if counted else 0.0


@dataclass(frozen=True)
class Traffic:
    """Bytes per step at the cluster's network interface on the first worker's host."""

    measured: float | None
    expected: float
    share: float
    """Of the gradient: what the exchange moves through this card per byte."""
    size: float
    """What a step adds up over the workers: all of the gradient, or what the exchange makes of it."""
    line_bytes_per_s: float | None
    """As measured before training, or in it if that was faster; None on one machine, or if it was not measured."""
    used: float | None
    """What share of the line the run used over its steps."""


IN_MEMORY = "host_sum"
"""The exact exchange of two workers on one machine: nothing of it goes over a wire."""
_ALGORITHMS: dict[str, Algorithm] = {
    "hierarchical": "hierarchical",
    "sharded": "all_to_all",
    "compressed": "all_to_all",
    "local": "all_to_all",
    "parameter_server": "parameter_server",
}
"""How exchanges add up, by the names that records have for them; the others in a ring."""


def algorithm_of(history: History) -> Algorithm:
    """The all-reduce algorithm of a run."""
    way = _ALGORITHMS.get(history.facts.get("exchange", "all_reduce"), "ring")
    is_by_host = history.recipe.exchange.hierarchical and 1 < history.num_hosts < history.size
    return "hierarchical" if way == "all_to_all" and is_by_host else way


def traffic(history: History, workload: Workload | None = None) -> Traffic:
    """Measured traffic beside expected traffic."""
    size = float(history.facts.get("exchanged_bytes") or 0.0)
    exchange = history.facts.get("exchange", "all_reduce")
    if workload is not None and exchange in EXCHANGES and exchange != "all_reduce":
        size = exchanged_bytes(workload, exchange) / steps_between(workload, exchange)
    in_memory = exchange == IN_MEMORY
    share = 0.0 if in_memory else card_share(algorithm_of(history), history.size, history.num_hosts)
    if exchange == "parameter_server" and history.size > 1:
        # The first host's card: on one machine, everything goes over loopback, to the servers and back.
        share = 2.0 * len(history.workers) if history.num_hosts == 1 else _chief_share(history)
    moved = [float(step["received"]) for step in history.first.typical() if "received" in step]
    measured = typical_bytes(moved, exchange) if moved and history.size > 1 else None
    pace = history.seconds_per_step
    carried = measured / pace if measured and pace else None
    line = float(history.link["bytes_per_s"]) if history.link and history.num_hosts > 1 else None
    if line and carried:
        line = max(line, carried)  # hosts that are busy before training measure too little
    return Traffic(
        measured=measured,
        expected=size * share,
        share=share,
        size=size,
        line_bytes_per_s=line,
        used=carried / line if carried and line else None,
    )


def _chief_share(history: History) -> float:
    """Weights that the first host's workers fetch from servers elsewhere, and gradients that its servers receive."""
    host, count = history.first.host, len(history.servers)
    fetched = sum(worker.host == host for worker in history.workers) * sum(
        s.host != host for s in history.servers
    )
    received = sum(worker.host != host for worker in history.workers) * sum(
        s.host == host for s in history.servers
    )
    return (fetched + received) / max(1, count)


def typical_bytes(moved: list[float], exchange: str) -> float:
    """Bytes of a step: the median, which scoring between steps does not affect; the mean if few steps exchange."""
    return statistics.fmean(moved) if exchange == "local" else statistics.median(moved)


def card_share(algorithm: Algorithm, workers: int, hosts: int) -> float:
    """Bytes at a host's network interface per byte summed; on one machine, at loopback, which all workers share."""
    if workers == 1:
        return 0.0
    if hosts == 1:
        return 2.0 * (workers - 1)
    fabric = Fabric(hosts, max(1, workers // hosts), _FREE, Interconnect(1e12, 0.0))
    return collective_cost(algorithm, fabric).card_bytes_per_byte
