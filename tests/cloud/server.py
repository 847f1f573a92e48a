"""moto's real HTTP server, with what it lacks of what we use: placement groups, EC2's quotas and the images' names."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import boto3
from moto.backends import get_backend
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from moto.server import ThreadedMotoServer
from moto.servicequotas.models import ServiceQuotasBackend
from moto.ssm.models import Parameter, SimpleSystemManagerBackend

from echelon.cloud.aws.site import CPU_IMAGE, GPU_IMAGE

REGION, ACCOUNT = "us-east-1", "123456789012"
IMAGE = "ami-12c6146b"
"""One that moto knows."""
PLACEMENT: dict[str, dict[str, Any]] = {}
QUOTAS: dict[str, float] = {}


def _create_placement_group(self: Any) -> ActionResult:
    name = self._get_param("GroupName")
    tags = self._parse_tag_specification("placement-group").get("placement-group", {})
    group = {"GroupName": name, "State": "available", "Strategy": self._get_param("Strategy")}
    PLACEMENT[name] = {**group, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    return ActionResult({"PlacementGroup": PLACEMENT[name]})


def _describe_placement_groups(self: Any) -> ActionResult:
    wanted = self._filters_from_querystring()

    def fits(group: dict[str, Any]) -> bool:
        tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
        keys = wanted.get("tag-key", [])
        pairs = {name[4:]: values for name, values in wanted.items() if name.startswith("tag:")}
        return all(key in tags for key in keys) and all(tags.get(key) in pairs[key] for key in pairs)

    return ActionResult({"PlacementGroups": [group for group in PLACEMENT.values() if fits(group)]})


def _delete_placement_group(self: Any) -> ActionResult:
    PLACEMENT.pop(self._get_param("GroupName"), None)
    return ActionResult({})


def _get_service_quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
    return {"ServiceCode": service_code, "QuotaCode": quota_code, "Value": QUOTAS.get(quota_code, 1000.0)}


def teach_moto() -> None:
    """Add to moto what it lacks, in this process."""
    machines: Any = EC2Response
    machines.create_placement_group = _create_placement_group
    machines.describe_placement_groups = _describe_placement_groups
    machines.delete_placement_group = _delete_placement_group
    quotas: Any = ServiceQuotasBackend
    quotas.get_service_quota = _get_service_quota
    parameters: Any = SimpleSystemManagerBackend
    parameters.get_parameter = _knows_images(parameters.get_parameter)


def _knows_images(known: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """`get_parameter`, which finds the names of images too."""
    make: Any = Parameter

    def get_parameter(self: Any, name: str) -> Any:
        if name not in (GPU_IMAGE, CPU_IMAGE):
            return known(self, name)
        facts = {"name": name, "value": IMAGE, "parameter_type": "String", "version": 1, "data_type": "text"}
        absent = dict.fromkeys(("description", "allowed_pattern", "keyid"))
        return make(
            account_id=self.account_id,
            last_modified_date=datetime.datetime.now(datetime.UTC),
            **facts,
            **absent,
        )

    return get_parameter


@contextmanager
def moto_server() -> Iterator[str]:
    """The server's address."""
    teach_moto()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@cache
def client(service: str) -> Any:
    """One of the tests' own; the server stays for all of them."""
    return boto3.client(service, region_name=REGION)


def everything_left() -> list[str]:
    """Whatever exists in the account that a new one does not have; asked of moto itself, as tests ask often."""
    ec2: Any = get_backend("ec2")[ACCOUNT][REGION]
    efs: Any = get_backend("efs")[ACCOUNT][REGION]
    iam: Any = get_backend("iam")[ACCOUNT]["aws"]
    return [
        *(instance.id for instance in ec2.all_instances() if instance.state != "terminated"),
        *(group.name for group in ec2.describe_security_groups() if group.name != "default"),
        *(pair.key_name for pair in ec2.describe_key_pairs([])),
        *PLACEMENT,
        *ec2.volumes,
        *efs.file_systems_by_id,
        *(role.name for role in iam.roles.values()),
        *iam.instance_profiles,
    ]
