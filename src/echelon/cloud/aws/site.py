"""Where in AWS a cluster goes: found out before anything is made."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.cloud.aws.calls import Clients
from echelon.cloud.prices import machine
from echelon.cloud.spec import ClusterSpec
from echelon.errors import CloudError, UserError

GPU_IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
CPU_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


@dataclass(frozen=True)
class Site:
    """A place for the machines, and what they start from."""

    subnet: str
    image: str


def find_site(clients: Clients, spec: ClusterSpec) -> Site:
    """Network, image and zone for a cluster; UserError where one is missing."""
    vpc = spec.vpc or _default_vpc(clients)
    subnet = spec.subnet or _fitting_subnet(clients, vpc, spec.type)
    image = spec.image or _newest_image(clients, GPU_IMAGE if machine("aws", spec.type).gpus else CPU_IMAGE)
    return Site(subnet, image)


def _default_vpc(clients: Clients) -> str:
    filters = [{"Name": "is-default", "Values": ["true"]}]
    found = clients.call("ec2", "describe_vpcs", Filters=filters)["Vpcs"]
    if not found:
        raise UserError(f"{clients.region} has no default VPC; name one with vpc = and subnet =")
    return str(found[0]["VpcId"])


def _fitting_subnet(clients: Clients, vpc: str, machine_type: str) -> str:
    filters = [{"Name": "instance-type", "Values": [machine_type]}]
    offers = clients.pages(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    zones = {offer["Location"] for offer in offers}
    if not zones:
        raise UserError(f"{clients.region} has no {machine_type}; choose another type or region")
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    subnets = sorted(
        clients.pages("ec2", "describe_subnets", "Subnets", Filters=filters),
        key=lambda subnet: (not subnet.get("MapPublicIpOnLaunch"), subnet["AvailabilityZone"]),
    )
    fitting = [str(subnet["SubnetId"]) for subnet in subnets if subnet["AvailabilityZone"] in zones]
    if not fitting:
        raise UserError(f"{vpc} has no subnet in a zone with {machine_type}; name one with subnet =")
    return fitting[0]


def _newest_image(clients: Clients, parameter: str) -> str:
    try:
        return str(clients.call("ssm", "get_parameter", Name=parameter)["Parameter"]["Value"])
    except CloudError as error:
        if error.code != "ParameterNotFound":
            raise
        raise UserError(f"{clients.region} does not offer {parameter}; name an AMI with image =") from None


def spot_price(clients: Clients, spec: ClusterSpec) -> float | None:
    """What one spare machine costs an hour now; None where AWS does not say."""
    try:
        history = clients.call(
            "ec2",
            "describe_spot_price_history",
            InstanceTypes=[spec.type],
            ProductDescriptions=["Linux/UNIX (Amazon VPC)"],
            MaxResults=20,
        )["SpotPriceHistory"]
    except CloudError:
        return None
    newest: dict[str, float] = {}
    for entry in sorted(history, key=lambda entry: str(entry["Timestamp"])):
        newest[entry["AvailabilityZone"]] = float(entry["SpotPrice"])
    return max(newest.values(), default=0.0) or None
