"""Everything in a region that carries our tags, whether or not anybody remembers it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.context import CLUSTER_TAG
from echelon.cloud.aws.permission import ROLE_PATH
from echelon.errors import CloudError


@dataclass(frozen=True)
class Found:
    """Something that exists at AWS."""

    cluster: str
    kind: str
    id: str
    state: str = ""
    machine_type: str = ""
    is_spot: bool = False
    started: float = 0.0
    """Seconds since 1970; 0 where it does not matter."""


def find_everything(clients: Clients) -> list[Found]:
    """All that is tagged in the region of `clients`."""
    found = [*_instances(clients), *_file_systems(clients)]
    for operation, key, id_key, kind in (
        ("describe_security_groups", "SecurityGroups", "GroupId", "security group"),
        ("describe_key_pairs", "KeyPairs", "KeyName", "key pair"),
        ("describe_placement_groups", "PlacementGroups", "GroupName", "placement group"),
    ):
        filters = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
        found += [
            Found(cluster, kind, str(entry[id_key]))
            for entry in clients.pages("ec2", operation, key, Filters=filters)
            if (cluster := _cluster_of(entry))
        ]
    return [*found, *_roles(clients)]


def _cluster_of(entry: dict[str, Any]) -> str:
    tags = {tag["Key"]: tag["Value"] for tag in entry.get("Tags", [])}
    return str(tags.get(CLUSTER_TAG, ""))


def _instances(clients: Clients) -> Iterator[Found]:
    filters = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
    for reservation in clients.pages("ec2", "describe_instances", "Reservations", Filters=filters):
        for instance in reservation["Instances"]:
            state = str(instance["State"]["Name"])
            if state != "terminated":
                yield Found(
                    _cluster_of(instance),
                    "machine",
                    str(instance["InstanceId"]),
                    state,
                    str(instance["InstanceType"]),
                    instance.get("InstanceLifecycle") == "spot",
                    instance["LaunchTime"].timestamp(),
                )


def _file_systems(clients: Clients) -> Iterator[Found]:
    for system in clients.pages("efs", "describe_file_systems", "FileSystems"):
        cluster = _cluster_of(system)
        if cluster:
            yield Found(cluster, "file system", str(system["FileSystemId"]), str(system["LifeCycleState"]))


def _roles(clients: Clients) -> list[Found]:
    try:
        roles = list(clients.pages("iam", "list_roles", "Roles", PathPrefix=ROLE_PATH))
    except CloudError:
        return []  # not everybody may ask
    return [
        Found(str(role["RoleName"]).removeprefix("echelon-"), "role", str(role["RoleName"])) for role in roles
    ]
