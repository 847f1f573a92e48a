"""Where nodes of a Ray cluster meet: at the addresses at which Ray itself reaches them."""

from __future__ import annotations

from dataclasses import replace

from echelon.launch.check import HostReport
from echelon.launch.interfaces import is_loopback
from echelon.launch.ray_cluster import RayNodes
from echelon.launch.routes import Route


def with_ray_route(report: HostReport, nodes: RayNodes) -> HostReport:
    """The report with the address at which Ray's nodes reach each other."""
    if report.facts is None:
        return report
    address, interfaces = nodes.address(report.host.name), report.facts.machine.interfaces
    own = next((each for each in interfaces if address in each.addresses), None)
    own = own or next((each for each in interfaces if each.is_loopback and is_loopback(address)), None)
    return replace(report, route=Route(own.name, address)) if own else report
