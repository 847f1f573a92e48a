"""Which exchange is the fastest on a line, from what was measured in a few seconds; pure.

A step is a worker's slots, the exchange, the optimiser. What goes out while the last slot's backward is running costs
only the processor's time; the rest is waited for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from echelon.recipe.exchanges import CLASSES, WORTH_IT, most_exact
from echelon.recipe.schema import ExchangeClass

Candidate = Literal["all_reduce", "compressed bf16", "compressed int8", "low_rank", "local"]
CANDIDATES: tuple[Candidate, ...] = get_args(Candidate)
"""From the one that learns the same as one worker to the one that differs most."""
SETTINGS: dict[Candidate, dict[str, Any]] = {
    "all_reduce": {"exchange": "all_reduce"},
    "compressed bf16": {"exchange": "compressed", "wire": "bf16"},
    "compressed int8": {"exchange": "compressed", "wire": "int8"},
    "low_rank": {"exchange": "low_rank"},
    "local": {"exchange": "local"},
}
"""The recipe's settings that select it."""
_BACKWARD = 2 / 3
"""The share of a slot's time that backward takes."""
_AS_FAST = 1.1
"""Measured times that differ by less say nothing."""
_SMALLEST_BUCKET, _LARGEST_BUCKET = 2**20, 2**24


@dataclass(frozen=True)
class Measured:
    """What was seen at the start, of the slowest worker unless said otherwise."""

    slots: int
    workers: int
    hosts: int
    slot_s: float
    """Forward and backward of one slot."""
    optimiser_s: float
    line_bytes_per_s: float
    latency_s: float
    """The time that an all-reduce of one number takes."""
    cpu_s_per_byte: float
    """Processor time that a byte on the line costs a worker."""
    num_bytes: Mapping[Candidate, float]
    """What a host's card sends for one agreement, of each exchange that the recipe can have."""
    own_s: Mapping[Candidate, float]
    """What an agreement computes by itself."""
    alone: Mapping[str, float]
    """Seconds of a step on each of the hosts alone, by its name."""
    steps_between: int
    """`local`: steps from one agreement to the next."""
    steps_behind: int
    """`local`: steps taken while an agreement is in flight."""

    @property
    def fastest(self) -> str:
        """The host that is to train if one is enough."""
        return fastest_of(list(self.alone), self.alone, 1)[0]

    @property
    def alone_s(self) -> float:
        """A step on the fastest of the hosts."""
        return min(self.alone.values())

    @property
    def bucket_bytes(self) -> int:
        """Between many buckets, which wait for each other, and a large last one, which nothing hides."""
        best = math.sqrt(self.num_bytes["all_reduce"] * self.latency_s * self.line_bytes_per_s)
        return int(min(max(best, _SMALLEST_BUCKET), _LARGEST_BUCKET))

    def step_s(self, name: Candidate) -> float:
        """A step on all hosts with this exchange."""
        compute_s = compute_seconds(self.slots, self.workers, self.slot_s, self.optimiser_s)
        size = self.num_bytes[name]
        busy_s, line_s = self.own_s[name] + size * self.cpu_s_per_byte, size / self.line_bytes_per_s
        match name:
            case "all_reduce" | "compressed bf16" | "compressed int8":
                return compute_s + busy_s + self._exposed_s(line_s)
            case "low_rank":  # two dependent rounds, with the rest beside them
                return compute_s + busy_s + line_s + 2 * self.latency_s
            case "local":
                late_s = max(0.0, line_s - self.steps_behind * compute_s)
                return compute_s + (busy_s + late_s) / self.steps_between

    def _exposed_s(self, line_s: float) -> float:
        """What of the time on the line backward does not hide: at least the last bucket's."""
        buckets = max(1, math.ceil(self.num_bytes["all_reduce"] / self.bucket_bytes))
        hidden_s = _BACKWARD * self.slot_s * (1 - 1 / buckets)
        return max(line_s + buckets * self.latency_s - hidden_s, line_s / buckets + self.latency_s)


@dataclass(frozen=True)
class Choice:
    """What "auto" becomes."""

    exchange: Candidate
    hosts: int | None
    """None for all of them."""
    reason: str
    """One sentence."""


def choose(measured: Measured, allowed: Collection[ExchangeClass]) -> Choice:
    """The most exact of the allowed exchanges that is nearly as fast as the fastest; one host if none of them pays."""
    best = _best([name for name in measured.num_bytes if class_of(name) in allowed], measured)
    link = f"a link of {show_rate(measured.line_bytes_per_s)}"
    advice = _advice(measured, best, allowed)
    step_s, alone_s = measured.step_s(best), measured.alone_s
    if step_s > WORTH_IT * alone_s:
        return Choice(
            "all_reduce",  # nothing is gained on one host by being less exact
            1,
            f'train.exchange = "auto" trains on one of {measured.hosts} hosts, {measured.fastest}: over {link} a step '
            f"would take {show_s(step_s)} with {best}, the best that is allowed, and takes {show_s(alone_s)} on that "
            f"one{advice}",
        )
    return Choice(
        best,
        None,
        f'train.exchange = "auto" is {best} here: over {link} a step takes {show_s(step_s)} on {measured.hosts} hosts '
        f"and {show_s(alone_s)} on one{advice}",
    )


def compute_seconds(slots: int, workers: int, slot_s: float, optimiser_s: float) -> float:
    """Seconds of a step, without the exchange."""
    return math.ceil(slots / workers) * slot_s + optimiser_s


def fastest_of(hosts: Sequence[str], alone: Mapping[str, float], count: int) -> list[str]:
    """The fastest hosts by how long each takes for a step alone; of those that are about as fast, the first."""
    left, chosen = {host: alone.get(host, math.inf) for host in hosts}, list[str]()
    for _ in range(count):
        best = min(left.values())
        chosen.append(next(host for host, seconds in left.items() if seconds <= _AS_FAST * best))
        del left[chosen[-1]]
    return chosen


def class_of(name: Candidate) -> ExchangeClass:
    return CLASSES[SETTINGS[name]["exchange"]]


def _best(names: Collection[Candidate], measured: Measured) -> Candidate:
    return most_exact({name: measured.step_s(name) for name in names})


def _advice(measured: Measured, best: Candidate, allowed: Collection[ExchangeClass]) -> str:
    """A hint at what a less exact exchange would gain."""
    better = _best(list(measured.num_bytes), measured)
    if class_of(better) in allowed or measured.step_s(better) > WORTH_IT * min(
        measured.step_s(best), measured.alone_s
    ):
        return ""
    more = ", ".join(f'"{name}"' for name in (*allowed, class_of(better)))
    return f"; with train.exchange_may = [{more}] it would take {show_s(measured.step_s(better))}"


def show_rate(bytes_per_s: float) -> str:
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.2g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mbit/s"


def show_s(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    return f"{1000 * seconds:.0f} ms" if seconds >= 0.01 else f"{1000 * seconds:.2g} ms"
