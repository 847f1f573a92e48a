"""moto's real HTTP server, with what it lacks of what we use: placement groups, EC2's quotas, the images' names, and
orders of machines that are carried out once however often they come.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import boto3
from moto.backends import get_backend
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.responses import EC2Response
from moto.iam.aws_managed_policies import aws_managed_policies_data
from moto.iam.exceptions import NotFoundException
from moto.iam.models import AWSManagedPolicy, IAMBackend
from moto.server import ThreadedMotoServer
from moto.servicequotas.models import ServiceQuotasBackend
from moto.ssm.models import Parameter, SimpleSystemManagerBackend

from echelon.cloud.aws.location import CPU_IMAGE, GPU_IMAGE
from echelon.cloud.aws.permission import SSM_POLICY

REGION, ACCOUNT = "us-east-1", "123456789012"
IMAGE = "ami-12c6146b"
"""One that moto knows."""
PLACEMENT: dict[tuple[str, str], dict[str, Any]] = {}
"""By region and name."""
QUOTAS: dict[str, float] = {}


def _create_placement_group(self: Any) -> ActionResult:
    name = self._get_param("GroupName")
    if (self.region, name) in PLACEMENT:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The placement group {name} already exists")
    tags = self._parse_tag_specification("placement-group").get("placement-group", {})
    group = {"GroupName": name, "State": "available", "Strategy": self._get_param("Strategy")}
    whole = {**group, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}
    PLACEMENT[self.region, name] = whole
    return ActionResult({"PlacementGroup": whole})


def _describe_placement_groups(self: Any) -> ActionResult:
    wanted = self._filters_from_querystring()
    names = self._get_param("GroupNames", [])
    for name in names:
        _require_placement_group(self, name)

    def fits(group: dict[str, Any]) -> bool:
        tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
        keys = wanted.get("tag-key", [])
        pairs = {name[4:]: values for name, values in wanted.items() if name.startswith("tag:")}
        return all(key in tags for key in keys) and all(tags.get(key) in pairs[key] for key in pairs)

    here = [
        group
        for (region, name), group in PLACEMENT.items()
        if region == self.region and name in (names or [name])
    ]
    return ActionResult({"PlacementGroups": [group for group in here if fits(group)]})


def _delete_placement_group(self: Any) -> ActionResult:
    del PLACEMENT[_require_placement_group(self, self._get_param("GroupName"))]
    return ActionResult({})


def _require_placement_group(self: Any, name: str) -> tuple[str, str]:
    if (self.region, name) not in PLACEMENT:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The placement group {name} is unknown")
    return self.region, name


def _remove_known_role(remove: Callable[..., None]) -> Callable[..., None]:
    """`remove_role_from_instance_profile`, which says so if the profile has no such role."""

    def remove_role(self: Any, profile_name: str, role_name: str) -> None:
        if role_name not in [role.name for role in self.get_instance_profile(profile_name).roles]:
            raise NotFoundException(f"{profile_name} has no role {role_name}")
        remove(self, profile_name, role_name)

    return remove_role


def _run_once(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run_instances`, which knows its orders by their tokens as AWS does."""

    def run_instances(self: Any, *arguments: Any, **settings: Any) -> Any:
        token = settings.get("client_token")
        for reservation in self.reservations.values():
            if any(instance.client_token == token for instance in reservation.instances):
                if any(instance.state == "terminated" for instance in reservation.instances):
                    raise EC2ClientError("IdempotentInstanceTerminated", "an instance of it has ended")
                # Which moto gives it again.
                self.iam_instance_profile_associations.pop(reservation.instances[0].id, None)
                return reservation
        return run(self, *arguments, **settings)

    return run_instances


def _get_service_quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
    return {"ServiceCode": service_code, "QuotaCode": quota_code, "Value": QUOTAS.get(quota_code, 1000.0)}


def _init_aws_policies(self: Any) -> list[AWSManagedPolicy]:
    """The one of AWS's own policies that we attach: all of them would take seconds."""
    name = SSM_POLICY.rpartition("/")[2]
    return [AWSManagedPolicy.from_data(name, self.account_id, self.region_name, _ssm_policy(name))]


@cache
def _ssm_policy(name: str) -> dict[str, Any]:
    policy: dict[str, Any] = json.loads(aws_managed_policies_data)[name]
    return policy


@cache
def teach_moto() -> None:
    """Add to moto what it lacks, in this process."""
    machines: Any = EC2Response
    machines.create_placement_group = _create_placement_group
    machines.describe_placement_groups = _describe_placement_groups
    machines.delete_placement_group = _delete_placement_group
    orders: Any = InstanceBackend
    orders.run_instances = _run_once(orders.run_instances)
    roles: Any = IAMBackend
    roles._init_aws_policies = _init_aws_policies
    roles.remove_role_from_instance_profile = _remove_known_role(roles.remove_role_from_instance_profile)
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
        *("/".join(place) for place in PLACEMENT),
        *ec2.volumes,
        *efs.file_systems_by_id,
        *(role.name for role in iam.roles.values()),
        *iam.instance_profiles,
    ]
