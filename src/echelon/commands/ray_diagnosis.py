"""`doctor --launcher ray`: a Ray cluster that this machine may use, and its nodes."""

from __future__ import annotations

from dataclasses import replace

from echelon.errors import EchelonError, RemoteError
from echelon.launch.check import HostReport, check_hosts
from echelon.launch.findings import Finding, Needs
from echelon.launch.hosts import Host
from echelon.launch.ray_actor import NODE_PYTHON
from echelon.launch.ray_cluster import NodeDemand, RayCluster, RayNode, RayNodes, connected
from echelon.launch.ray_routes import with_ray_route


def check_ray(address: str | None, needs: Needs) -> tuple[list[Finding], list[HostReport]]:
    """What is missing to train on a Ray cluster, and what its nodes say. Nothing is reserved for that."""
    try:
        with connected(address) as cluster:
            return _check_nodes(cluster, needs)
    except EchelonError as error:  # no ray, no cluster, no token
        what, _, remedy = str(error).partition("; ")
        return [Finding(what, remedy)], []


def _check_nodes(cluster: RayCluster, needs: Needs) -> tuple[list[Finding], list[HostReport]]:
    findings, hosts = list[Finding](), list[Host]()
    nodes = RayNodes(cluster, NodeDemand(0), 0)
    try:
        for node in cluster.nodes():
            if node.cpus < 1:  # a head that only leads
                continue
            try:
                hosts.append(Host(nodes.hold(node), _workers_on(node)))
            except RemoteError as error:
                findings.append(Finding(f"{node.address}: {error.message}", error.remedy))
        if not hosts:
            findings.append(
                Finding(f"{cluster.address} has no node to train on", "`ray start --address` adds one")
            )
        remotes = {host.name: nodes.remote(host.name) for host in hosts}
        needs = replace(needs, python=NODE_PYTHON, measures_link=not nodes.is_on_loopback())
        reports = (
            [with_ray_route(report, nodes) for report in check_hosts(hosts, remotes, needs)] if hosts else []
        )
    finally:
        nodes.close()
    return findings, reports


def _workers_on(node: RayNode) -> int | None:
    """One for each GPU; without GPUs it is up to the recipe."""
    return int(node.gpus) or None
