"""Collectives: seconds and bytes that can be checked by hand, and a ring that is really run, round by round."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.explain.collectives import (
    Algorithm,
    Cost,
    Fabric,
    Interconnect,
    ReadyBuffer,
    collective_cost,
    exposed_seconds,
)

SLOW, FAST = Interconnect(12.5e6, 1e-4), Interconnect(10e9, 1e-5)


def fabric(hosts: int, per_host: int = 1, line: Interconnect = SLOW) -> Fabric:
    return Fabric(hosts, per_host, line, FAST)


def ring_bytes(hosts: int, per_host: int, size: int) -> int:
    """What the first host's card sends when a ring is gone through chunk by chunk."""
    workers = hosts * per_host
    sent = 0
    for _ in range(2 * (workers - 1)):  # each round, every worker passes one chunk on to the next
        for rank in range(workers):
            if rank // per_host == 0 and (rank + 1) % workers // per_host != 0:
                sent += size // workers
    return sent


@given(st.integers(2, 8), st.integers(1, 4))
def test_a_rings_bytes_are_those_of_a_ring_that_is_gone_through(hosts: int, per_host: int) -> None:
    size = hosts * per_host * 100
    cost = collective_cost("ring", fabric(hosts, per_host))
    assert cost.card_bytes_per_byte * size == pytest.approx(ring_bytes(hosts, per_host, size))


@given(st.integers(1, 8), st.integers(1, 4))
def test_all_to_alls_bytes_are_those_of_all_pairs_of_workers(hosts: int, per_host: int) -> None:
    workers = hosts * per_host
    pairs = sum(to // per_host != 0 for _ in range(per_host) for to in range(workers))
    cost = collective_cost("all_to_all", fabric(hosts, per_host))
    assert cost.card_bytes_per_byte == pytest.approx(2 * pairs / workers)  # pieces, and then sums


def test_a_ring_over_a_slow_line_takes_what_the_line_takes() -> None:
    cost = collective_cost("ring", fabric(2))
    assert cost.seconds(12.5e6) == pytest.approx(1.0 + 2 * 1e-4)


def test_one_worker_has_nothing_to_exchange() -> None:
    for algorithm in get_args(Algorithm):
        assert collective_cost(algorithm, fabric(1)) == Cost(0.0, 0.0, 0.0)


def test_hosts_with_several_workers_send_less_in_a_hierarchy() -> None:
    ring = collective_cost("ring", fabric(2, 4))
    hierarchy = collective_cost("hierarchical", fabric(2, 4))
    assert (ring.card_bytes_per_byte, hierarchy.card_bytes_per_byte) == (1.75, 1.0)
    assert hierarchy.seconds(1e9) < ring.seconds(1e9)


def test_a_tree_needs_fewer_rounds_and_more_bytes() -> None:
    ring, tree = (collective_cost(name, fabric(256)) for name in ("ring", "tree"))
    assert tree.seconds(1000) < ring.seconds(1000)
    assert tree.card_bytes_per_byte > ring.card_bytes_per_byte


def test_a_parameter_servers_cards_carry_every_workers_gradient() -> None:
    """Four hosts with two processes each, of which one serves: seven workers, six of them on other hosts."""
    one, two = (collective_cost("parameter_server", replace(fabric(4, 2), servers=count)) for count in (1, 2))
    assert one.card_bytes_per_byte == pytest.approx(6)
    assert two.card_bytes_per_byte == pytest.approx(5 / 2)


def test_a_limit_for_single_connections_holds_for_each_of_them() -> None:
    line = Interconnect(10e9 / 8, 0.0, flow_bytes_per_s=5e9 / 8)
    assert line.rate(1) == 5e9 / 8
    assert line.rate(4) == 10e9 / 8
    one, four = (
        collective_cost("ring", Fabric(2, 1, line, FAST, flows=flows)).seconds_per_byte for flows in (1, 4)
    )
    assert one == pytest.approx(2 * four)


def test_nothing_is_exposed_but_the_last_buffer_where_backward_is_slow() -> None:
    cost = Cost(0.0, 1e-9, 1.0)
    buffers = [ReadyBuffer(1.0, 1e8), ReadyBuffer(1.0, 1e8), ReadyBuffer(1.0, 1e8)]
    assert exposed_seconds(buffers, cost) == pytest.approx(0.1)


def test_all_but_the_first_wait_is_exposed_where_the_line_is_slow() -> None:
    cost = Cost(0.0, 1e-7, 1.0)
    buffers = [ReadyBuffer(1.0, 1e8), ReadyBuffer(1.0, 1e8)]
    assert exposed_seconds(buffers, cost) == pytest.approx(1 + 20 - 2)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e9)), min_size=1, max_size=8), st.floats(0, 1e-7))
def test_what_is_exposed_lies_between_the_last_buffer_and_all_of_them(
    sizes: list[tuple[float, float]], seconds_per_byte: float
) -> None:
    cost = Cost(0.0, seconds_per_byte, 1.0)
    buffers = [ReadyBuffer(*size) for size in sizes]
    exposed = exposed_seconds(buffers, cost)
    slack = 1e-9
    assert cost.seconds(buffers[-1].size_bytes) <= exposed + slack
    assert exposed <= math.fsum(cost.seconds(buffer.size_bytes) for buffer in buffers) + slack
