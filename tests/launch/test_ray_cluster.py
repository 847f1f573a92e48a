"""Connecting to a Ray cluster and reserving nodes, with a stand-in for the module `ray`."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from echelon.errors import RemoteError, UserError
from echelon.launch import ray_cluster
from echelon.launch.ray_actor import NodeFacts
from echelon.launch.ray_cluster import (
    NodeDemand,
    NodesElsewhere,
    RayNode,
    RayPlace,
    connected,
    count_at_start,
    render_group,
)

SMALL, LARGE = RayNode("a", "10.0.0.1", 2, 0), RayNode("b", "10.0.0.2", 8, 2)


def test_each_bundle_has_a_node_of_its_own_with_a_core_and_a_gpu_for_each_worker() -> None:
    assert render_group(NodeDemand(2), 3) == ([{"CPU": 2}] * 3, "STRICT_SPREAD")
    assert render_group(NodeDemand(4, 4), 2) == ([{"CPU": 4, "GPU": 4}] * 2, "STRICT_SPREAD")


def test_a_run_begins_on_all_nodes_that_fit_and_waits_for_as_many_as_it_needs() -> None:
    nodes = [SMALL, LARGE, LARGE]
    assert count_at_start(nodes, NodeDemand(2), 1, None) == 3
    assert count_at_start(nodes, NodeDemand(2), 1, 2) == 2
    assert count_at_start(nodes, NodeDemand(4), 1, None) == 2
    assert count_at_start(nodes, NodeDemand(2, 1), 5, 8) == 5


class StandIn:
    """What `connected` calls of ray; `init` takes the address that it was given."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.calls: list[str] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, address: str, **_: Any) -> None:
        self.calls.append(f"init {address}")

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address=f"{self.addresses[0]}:6379")

    def nodes(self) -> list[dict[str, Any]]:
        return [
            {"Alive": True, "NodeID": address, "NodeManagerAddress": address, "Resources": {"CPU": 2.0}}
            for address in self.addresses
        ]


Use = Callable[..., StandIn]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Put a cluster with nodes at these addresses in the place of ray."""

    def put(*addresses: str) -> StandIn:
        stand_in = StandIn(*addresses)
        monkeypatch.setattr(ray_cluster, "_import_ray", lambda: stand_in)
        return stand_in

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    return put


def test_a_cluster_on_loopback_needs_no_token(use: Use) -> None:
    ray = use("127.0.0.1", "127.0.0.2")
    with connected() as cluster:
        assert [node.address for node in cluster.nodes()] == ["127.0.0.1", "127.0.0.2"]
    assert ray.calls == ["init auto", "shutdown"]


def test_a_cluster_on_a_network_needs_a_token(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = use("127.0.0.1", "10.0.0.2")
    with pytest.raises(UserError, match="RAY_AUTH_MODE=token on every node"), connected():
        raise AssertionError("it must not be used")
    assert ray.calls[-1] == "shutdown"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with connected():
        assert ray.calls[-1] == "init auto"


@pytest.mark.parametrize(
    ("address", "wants_token", "is_held"),
    [
        ("127.0.0.1", False, True),
        ("10.0.0.1", True, True),
        ("10.0.0.1", False, False),
    ],
)
def test_a_node_whose_ray_asks_for_no_token_is_not_used(
    use: Use, monkeypatch: pytest.MonkeyPatch, address: str, wants_token: bool, is_held: bool
) -> None:
    ray, killed = use(address), list[Any]()
    actor = SimpleNamespace(describe=None, stay=SimpleNamespace(remote=lambda: "a call"))
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: actor))
    monkeypatch.setattr(ray, "remote", lambda _: made, raising=False)
    monkeypatch.setattr(ray, "kill", killed.append, raising=False)
    monkeypatch.setattr(ray, "wait", lambda calls, **_: ([], calls), raising=False)
    monkeypatch.setattr(ray_cluster, "ask", lambda *_, **__: NodeFacts("node", wants_token))
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)
    cluster = ray_cluster.RayCluster("head:6379")
    nodes = ray_cluster.RayNodes(cluster, NodeDemand(1), 0)
    if is_held:
        assert nodes.hold(cluster.nodes()[0]) == "ray-0"
        assert (nodes.names, killed) == (["ray-0"], [])
        return
    with pytest.raises(UserError, match="was started without RAY_AUTH_MODE=token"):
        nodes.hold(cluster.nodes()[0])
    assert (nodes.names, killed) == ([], [actor])


def test_an_address_where_nobody_listens_is_told_at_once(use: Use) -> None:
    ray = use("127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(UserError, match=f"--address {address}: no Ray cluster answers there"),
            connected(address),
        ):
            raise AssertionError("nobody is there")
    for address in ("ray://head:10001", "head", "head:x"):
        with pytest.raises(UserError, match="give HOST:PORT"), connected(address):
            raise AssertionError("that is no address")
    assert ray.calls == []


def test_without_a_cluster_the_user_is_told_how_to_begin_one(
    use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(use("127.0.0.1"), "init", fail)
    with pytest.raises(UserError, match="ray start --head"), connected():
        raise AssertionError("there is none")


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"needs ray \(extra ray\)"), connected():
        raise AssertionError("it cannot be imported")


def test_the_nodes_of_a_run_whose_cluster_is_gone_are_unreachable(
    monkeypatch: pytest.MonkeyPatch, use: Use
) -> None:
    def fail(**_: Any) -> None:
        raise ConnectionError("no")

    monkeypatch.setattr(use("127.0.0.1"), "init", fail)
    nodes = NodesElsewhere(RayPlace("auto", "echelon-1"))
    for _ in range(2):
        with pytest.raises(RemoteError, match="ray-3: this machine belongs to no Ray cluster"):
            nodes.remote("ray-3").run(["true"], timeout_s=1)
    nodes.close()
