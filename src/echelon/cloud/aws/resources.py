"""Everything in a region that carries our tags, including what no journal knows of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.context import CLUSTER_TAG, OWNER_TAG
from echelon.cloud.aws.permission import ROLE_PATH
from echelon.errors import CloudError


@dataclass(frozen=True)
class Resource:
    """Something that exists at AWS."""

    cluster: str
    kind: str
    id: str
    state: str = ""
    machine_type: str = ""
    is_spot: bool = False
    started: float = 0.0
    """Seconds since 1970; 0 if it does not matter."""
    owner: str = ""
    """The ARN of its creator; empty if unknown."""


def find_everything(clients: Clients) -> list[Resource]:
    """All that is tagged in the region of `clients`."""
    found = [*_instances(clients), *_file_systems(clients)]
    for operation, key, id_key, kind in (
        ("describe_security_groups", "SecurityGroups", "GroupId", "security group"),
        ("describe_key_pairs", "KeyPairs", "KeyName", "key pair"),
        ("describe_placement_groups", "PlacementGroups", "GroupName", "placement group"),
    ):
        filters = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
        found += [
            Resource(_tag(entry, CLUSTER_TAG), kind, str(entry[id_key]), owner=_tag(entry, OWNER_TAG))
            for entry in clients.pages("ec2", operation, key, Filters=filters)
            if _tag(entry, CLUSTER_TAG)
        ]
    return [
        *found,
        *_permissions(clients, "Role", "role"),
        *_permissions(clients, "InstanceProfile", "instance profile"),
    ]


def _tag(entry: dict[str, Any], name: str) -> str:
    tags = {tag["Key"]: tag["Value"] for tag in entry.get("Tags", [])}
    return str(tags.get(name, ""))


def _instances(clients: Clients) -> Iterator[Resource]:
    filters = [{"Name": "tag-key", "Values": [CLUSTER_TAG]}]
    for reservation in clients.pages("ec2", "describe_instances", "Reservations", Filters=filters):
        for instance in reservation["Instances"]:
            state = str(instance["State"]["Name"])
            if state != "terminated":
                yield Resource(
                    _tag(instance, CLUSTER_TAG),
                    "machine",
                    str(instance["InstanceId"]),
                    state,
                    str(instance["InstanceType"]),
                    instance.get("InstanceLifecycle") == "spot",
                    instance["LaunchTime"].timestamp(),
                    _tag(instance, OWNER_TAG),
                )


def _file_systems(clients: Clients) -> Iterator[Resource]:
    for system in clients.pages("efs", "describe_file_systems", "FileSystems"):
        cluster, state = _tag(system, CLUSTER_TAG), str(system["LifeCycleState"])
        if cluster:
            owner = _tag(system, OWNER_TAG)
            yield Resource(cluster, "file system", str(system["FileSystemId"]), state, owner=owner)


def _permissions(clients: Clients, kind: str, name: str) -> list[Resource]:
    """Roles or instance profiles of the region: the whole account has one list, which does not tell their tags."""
    operation = {"Role": "role", "InstanceProfile": "instance_profile"}[kind]
    try:
        entries = list(clients.pages("iam", f"list_{operation}s", f"{kind}s", PathPrefix=ROLE_PATH))
        names = [str(entry[f"{kind}Name"]) for entry in entries]
        return [
            Resource(_tag(whole, CLUSTER_TAG), name, each, owner=_tag(whole, OWNER_TAG))
            for each in names
            if each.endswith(f".{clients.region}")
            for whole in [clients.call("iam", f"get_{operation}", **{f"{kind}Name": each})[kind]]
        ]
    except CloudError:
        return []  # not everybody may ask
