"""The cost of an all-reduce: seconds and bytes at each host's network interface, from first principles.

S is the buffer's size, H the hosts, k the workers of each, N = H k. A line carries its rate in each direction at once.

    ring             N - 1 rounds of reduce-scatter and as many of all-gather, each moving S / N along every edge. Ranks
                     lie host by host, so a host's card has one edge in and one out: 2 S (N - 1) / N.
    tree             up and down two trees that share the buffer, each worker inside one and a leaf of the other: 2 S,
                     in 2 log2 H rounds between hosts; within a host the ring.
    hierarchical     reduce-scatter within each host, k rings between hosts, one for each part, all-gather within:
                     2 S (H - 1) / H at the card, in k flows.
    all to all       every worker adds up an N-th: it gets the others' pieces of it, and sends each of them the sum.
                     What a host's k workers and the N - k elsewhere send each other: 2 S k (N - k) / N at the card.
    parameter server K of the N processes serve S / K each, on different hosts; the N - K workers send them gradients,
                     then fetch weights. At a server's card: what the workers of other hosts send it, S / K each, and
                     then as much in the other direction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["ring", "tree", "hierarchical", "all_to_all", "parameter_server"]


@dataclass(frozen=True)
class Interconnect:
    """The link between hosts, or between the workers of one."""

    bytes_per_s: float
    """In each direction, after headers."""
    latency_s: float
    flow_bytes_per_s: float = math.inf
    """What one connection gets at most, e.g. in clouds that limit single flows."""

    def rate(self, flows: int) -> float:
        """Bytes a second over this many connections in parallel."""
        return min(self.bytes_per_s, flows * self.flow_bytes_per_s)


@dataclass(frozen=True)
class Fabric:
    """How the workers of a cluster are connected."""

    hosts: int
    per_host: int
    line: Interconnect
    """Between hosts."""
    inner: Interconnect
    """Between the workers of a host."""
    servers: int = 1
    """Processes that only serve weights, in a run with parameter servers."""
    flows: int = 1
    """Connections that each edge of a ring uses side by side."""

    @property
    def size(self) -> int:
        return self.hosts * self.per_host

    @property
    def serving(self) -> int:
        """How many servers have a process of their own; a single process does both."""
        return min(self.servers, self.size - 1)


@dataclass(frozen=True)
class Cost:
    """The cost of an all-reduce: a part independent of the buffer's size, and one proportional to it."""

    latency_s: float
    seconds_per_byte: float
    card_bytes_per_byte: float
    """What each host's card receives, and sends, per byte of the buffer."""

    def seconds(self, size_bytes: float, buffers: int = 1) -> float:
        return buffers * self.latency_s + size_bytes * self.seconds_per_byte


def collective_cost(algorithm: Algorithm, fabric: Fabric) -> Cost:
    """The cost of an all-reduce; nothing with one worker."""
    if fabric.size == 1:
        return Cost(0.0, 0.0, 0.0)
    match algorithm:
        case "ring":
            return _ring(fabric)
        case "tree":
            return _tree(fabric)
        case "hierarchical":
            return _hierarchical(fabric)
        case "all_to_all":
            return _all_to_all(fabric)
        case "parameter_server":
            return _parameter_server(fabric)


def _ring(fabric: Fabric) -> Cost:
    share = 2 * (fabric.size - 1) / fabric.size
    edges = [fabric.line.rate(fabric.flows)] if fabric.hosts > 1 else []
    edges += [fabric.inner.bytes_per_s] if fabric.per_host > 1 else []
    slowest = max(_latencies(fabric))
    card = share if fabric.hosts > 1 else 0.0
    return Cost(2 * (fabric.size - 1) * slowest, share / min(edges), card)


def _tree(fabric: Fabric) -> Cost:
    inside = _within_host(fabric)
    if fabric.hosts == 1:
        return inside
    rounds = 2 * math.ceil(math.log2(fabric.hosts))
    between = 2 / fabric.line.rate(2 * fabric.flows)
    return Cost(inside.latency_s + rounds * fabric.line.latency_s, inside.seconds_per_byte + between, 2.0)


def _hierarchical(fabric: Fabric) -> Cost:
    inside = _within_host(fabric)
    if fabric.hosts == 1:
        return inside
    share = 2 * (fabric.hosts - 1) / fabric.hosts
    between = share / fabric.line.rate(fabric.per_host * fabric.flows)
    latency = 2 * (fabric.hosts - 1) * fabric.line.latency_s
    return Cost(inside.latency_s + latency, inside.seconds_per_byte + between, share)


def _all_to_all(fabric: Fabric) -> Cost:
    k, elsewhere = fabric.per_host, fabric.size - fabric.per_host
    share = 2 * k * elsewhere / fabric.size
    within = 2 * (k - 1) / fabric.size / fabric.inner.bytes_per_s
    between = share / fabric.line.rate(fabric.flows * k * elsewhere) if elsewhere else 0.0
    return Cost(2 * max(_latencies(fabric)), max(within, between), share)


def _parameter_server(fabric: Fabric) -> Cost:
    workers = fabric.size - fabric.serving
    beside = min(fabric.per_host - 1, workers) if fabric.hosts > 1 else workers
    share = (workers - beside) / fabric.serving
    rate = fabric.line.rate(fabric.flows * max(1, workers - beside)) if fabric.hosts > 1 else math.inf
    within = beside / fabric.serving / fabric.inner.bytes_per_s
    # Gradients first, then weights: one direction after the other.
    return Cost(4 * max(_latencies(fabric)), 2 * (share / rate + within), share)


def _within_host(fabric: Fabric) -> Cost:
    """Reduce-scatter and all-gather among the workers of a host."""
    k = fabric.per_host
    if k == 1:
        return Cost(0.0, 0.0, 0.0)
    return Cost(2 * (k - 1) * fabric.inner.latency_s, 2 * (k - 1) / k / fabric.inner.bytes_per_s, 0.0)


def _latencies(fabric: Fabric) -> list[float]:
    between = [fabric.line.latency_s] if fabric.hosts > 1 else []
    return between + ([fabric.inner.latency_s] if fabric.per_host > 1 else [])


@dataclass(frozen=True)
class ReadyBuffer:
    """A bucket of the gradient, and how long backward takes from the bucket before it until this one is ready."""

    backward_s: float
    size_bytes: float


def exposed_seconds(buffers: list[ReadyBuffer], cost: Cost) -> float:
    """How long after backward's end the last buffer is added up, each being sent as soon as it is ready and the line
    is free."""
    clock = free_at = 0.0
    for buffer in buffers:
        clock += buffer.backward_s
        free_at = max(free_at, clock) + cost.seconds(buffer.size_bytes)
    return free_at - clock
