"""Where in AWS a cluster goes, decided before anything is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.cloud.aws.calls import NOT_FOUND, Clients
from echelon.cloud.cluster_spec import ClusterSpec
from echelon.cloud.prices import machine
from echelon.errors import CloudError, UserError

GPU_IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
CPU_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"


@dataclass(frozen=True)
class Site:
    """The network and zone for the machines, and the image they boot from."""

    subnet: str
    image: str


def find_site(clients: Clients, spec: ClusterSpec) -> Site:
    """Network, image and zone for a cluster; UserError if one is missing or cannot be used."""
    _check_key(clients, spec)
    vpc = spec.vpc or _default_vpc(clients)
    zones = zones_with(clients, spec.type)
    subnet = (_named_subnet if spec.subnet else _fitting_subnet)(clients, spec, vpc, zones)
    image = spec.image or _newest_image(clients, GPU_IMAGE if machine("aws", spec.type).gpus else CPU_IMAGE)
    return Site(subnet, image)


def _check_key(clients: Clients, spec: ClusterSpec) -> None:
    """UserError if the key that the user names is missing, here or at AWS."""
    if spec.key_file is None or spec.key_name is None:
        return
    if not Path(spec.key_file).expanduser().is_file():
        raise UserError(f"key_file: there is no file {spec.key_file}")
    try:
        clients.call("ec2", "describe_key_pairs", KeyNames=[spec.key_name])
    except CloudError as error:
        if error.code not in NOT_FOUND:
            raise
        raise UserError(f"key_name: {clients.region} has no key pair {spec.key_name}") from None


def _default_vpc(clients: Clients) -> str:
    filters = [{"Name": "is-default", "Values": ["true"]}]
    found = clients.call("ec2", "describe_vpcs", Filters=filters)["Vpcs"]
    if not found:
        raise UserError(f"{clients.region} has no default VPC; name one with vpc = and subnet =")
    return str(found[0]["VpcId"])


def zones_with(clients: Clients, machine_type: str) -> set[str]:
    """Return the zones of the region that have machines of this type; UserError if none has."""
    filters = [{"Name": "instance-type", "Values": [machine_type]}]
    offers = clients.pages(
        "ec2",
        "describe_instance_type_offerings",
        "InstanceTypeOfferings",
        LocationType="availability-zone",
        Filters=filters,
    )
    zones = {str(offer["Location"]) for offer in offers}
    if not zones:
        raise UserError(f"{clients.region} has no {machine_type}; choose another type or region")
    return zones


def _named_subnet(clients: Clients, spec: ClusterSpec, vpc: str, zones: set[str]) -> str:
    """The subnet that the user names; UserError if it does not suit the machines, or they cannot be reached there."""
    filters = [{"Name": "subnet-id", "Values": [str(spec.subnet)]}]
    found = list(clients.pages("ec2", "describe_subnets", "Subnets", Filters=filters))
    if not found:
        raise UserError(f"subnet: {clients.region} has no {spec.subnet}")
    subnet = found[0]
    if subnet["VpcId"] != vpc:
        raise UserError(f"subnet: {spec.subnet} is in {subnet['VpcId']}, not in vpc = {vpc}")
    if subnet["AvailabilityZone"] not in zones:
        raise UserError(
            f"subnet: {spec.subnet} is in {subnet['AvailabilityZone']}, which has no {spec.type}; these zones have: "
            f"{', '.join(sorted(zones))}"
        )
    _require_way_in(clients, spec, subnet)
    return str(spec.subnet)


def _fitting_subnet(clients: Clients, spec: ClusterSpec, vpc: str, zones: set[str]) -> str:
    filters = [{"Name": "vpc-id", "Values": [vpc]}]
    subnets = sorted(
        clients.pages("ec2", "describe_subnets", "Subnets", Filters=filters),
        key=lambda subnet: (
            bool(subnet.get("MapPublicIpOnLaunch")) == spec.is_private,
            subnet["AvailabilityZone"],
        ),
    )
    fitting = [subnet for subnet in subnets if subnet["AvailabilityZone"] in zones]
    if not fitting:
        raise UserError(f"{vpc} has no subnet in a zone with {spec.type}; name one with subnet =")
    _require_way_in(clients, spec, fitting[0])
    return str(fitting[0]["SubnetId"])


def _require_way_in(clients: Clients, spec: ClusterSpec, subnet: dict[str, Any]) -> None:
    if not has_way_in(clients, spec, subnet):
        raise UserError(
            f"{subnet['SubnetId']} is a private subnet: nothing outside reaches machines there; name a bastion with "
            "proxy_jump =, or set ssm = true"
        )


def has_way_in(clients: Clients, spec: ClusterSpec, subnet: dict[str, Any]) -> bool:
    """Whether machines in a subnet can be reached: those with public addresses need an internet gateway."""
    if spec.is_private or subnet.get("MapPublicIpOnLaunch"):
        return True
    pages, own = clients.pages, [{"Name": "association.subnet-id", "Values": [str(subnet["SubnetId"])]}]
    main = [
        {"Name": "vpc-id", "Values": [str(subnet["VpcId"])]},
        {"Name": "association.main", "Values": ["true"]},
    ]
    tables = list(pages("ec2", "describe_route_tables", "RouteTables", Filters=own))
    tables = tables or list(pages("ec2", "describe_route_tables", "RouteTables", Filters=main))
    gateways = [str(route.get("GatewayId", "")) for table in tables for route in table["Routes"]]
    return any(gateway.startswith("igw-") for gateway in gateways)


def _newest_image(clients: Clients, parameter: str) -> str:
    try:
        return str(clients.call("ssm", "get_parameter", Name=parameter)["Parameter"]["Value"])
    except CloudError as error:
        if error.code != "ParameterNotFound":
            raise
        raise UserError(f"{clients.region} does not offer {parameter}; name an AMI with image =") from None


def spot_price(clients: Clients, spec: ClusterSpec) -> float | None:
    """The current hourly price of one spot machine; None if AWS does not say."""
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
