"""What a run asks of a Ray cluster; tests/integration/test_ray.py trains on one."""

from __future__ import annotations

import sys

import pytest

from echelon.commands.doctor import diagnose_with_ray
from echelon.commands.ray_training import NodeCount, find_demand, parse_count
from echelon.errors import HostsError
from echelon.launch.findings import Needs
from echelon.launch.ray_cluster import NodeDemand, RayNode
from echelon.recipe.workers import parse_workers

CPUS = [RayNode("a", "10.0.0.1", 8, 0), RayNode("b", "10.0.0.2", 4, 0), RayNode("head", "10.0.0.3", 0, 0)]
GPUS = [*CPUS, RayNode("c", "10.0.0.4", 16, 4), RayNode("d", "10.0.0.5", 16, 8)]


@pytest.mark.parametrize(
    ("workers", "nodes", "gpus_per_node", "demand"),
    [
        ("2", CPUS, None, NodeDemand(2)),
        ("auto", CPUS, None, NodeDemand(4)),
        ("auto", GPUS, None, NodeDemand(4, 4)),
        ("2", GPUS, None, NodeDemand(2, 2)),
        ("auto", GPUS, 8, NodeDemand(8, 8)),
        ("auto", [], None, NodeDemand(1)),
    ],
)
def test_a_node_gives_a_core_and_if_there_are_some_a_gpu_for_each_worker(
    workers: str, nodes: list[RayNode], gpus_per_node: int | None, demand: NodeDemand
) -> None:
    assert find_demand(parse_workers(workers), nodes, gpus_per_node) == demand


def test_a_range_of_workers_is_refused() -> None:
    with pytest.raises(HostsError, match="give one number"):
        find_demand(parse_workers("1:4"), CPUS, None)


def test_num_hosts_says_how_many_nodes_there_must_be_and_may_be() -> None:
    assert parse_count(None) == NodeCount(None, None)
    assert parse_count("2") == NodeCount(2, None)
    assert parse_count("2:8") == NodeCount(2, 8)
    for text in ("x", "0:2", "3:2", "2:"):
        with pytest.raises(HostsError, match=f"--num-hosts {text}"):
            parse_count(text)


def test_doctor_says_that_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    diagnosis = diagnose_with_ray(None, Needs())
    assert not diagnosis.is_fit
    assert diagnosis.findings[-1].what == "this needs ray (extra ray)"
    assert "installs it" in diagnosis.findings[-1].remedy
