"""The zones of a region: a cluster's own, and others to try if AWS has no capacity there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.location import has_way_in, zones_with
from echelon.cloud.cluster_spec import ClusterSpec


@dataclass(frozen=True)
class Subnet:
    """A subnet and its zone."""

    id: str
    zone: str


def find_zone(clients: Clients, subnet: str) -> str:
    return str(_describe(clients, "subnet-id", subnet)[0]["AvailabilityZone"])


def other_subnets(clients: Clients, spec: ClusterSpec, subnet: str) -> list[Subnet]:
    """Return subnets of the same network and kind, one in each other zone that has such machines."""
    here = _describe(clients, "subnet-id", subnet)[0]
    zones = zones_with(clients, spec.type) - {here["AvailabilityZone"]}
    alike = [
        Subnet(str(each["SubnetId"]), str(each["AvailabilityZone"]))
        for each in _describe(clients, "vpc-id", str(here["VpcId"]))
        if each["AvailabilityZone"] in zones
        and each.get("MapPublicIpOnLaunch") == here.get("MapPublicIpOnLaunch")
        and has_way_in(clients, spec, each)
    ]
    by_zone = {each.zone: each for each in sorted(alike, key=lambda each: each.id, reverse=True)}
    return [by_zone[zone] for zone in sorted(by_zone)]


def _describe(clients: Clients, by: str, value: str) -> list[dict[str, Any]]:
    filters = [{"Name": by, "Values": [value]}]
    return list(clients.pages("ec2", "describe_subnets", "Subnets", Filters=filters))
