"""The account's machine quota, checked before anything is made, and the text of a request for more."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echelon.cloud.aws.calls import Clients
from echelon.cloud.cluster_spec import ClusterSpec
from echelon.cloud.prices import machine
from echelon.errors import CloudError, UserError

_ON_DEMAND = {
    "G": ("L-DB2E81BA", "Running On-Demand G and VT instances"),
    "P": ("L-417A185B", "Running On-Demand P instances"),
    "X": ("L-7295265B", "Running On-Demand X instances"),
    "standard": ("L-1216C47A", "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances"),
}
_SPOT = {
    "G": ("L-3819A6DF", "All G and VT Spot Instance Requests"),
    "P": ("L-7212CCBC", "All P Spot Instance Requests"),
    "X": ("L-E3A00192", "All X Spot Instance Requests"),
    "standard": ("L-34B43A08", "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests"),
}


@dataclass(frozen=True)
class Quota:
    """A limit of the account, in virtual processors."""

    code: str
    name: str
    limit: float
    used: float


def format_request(clients: Clients, spec: ClusterSpec, missing: int) -> str:
    """Write the request for more, after AWS has refused `missing` machines."""
    needed = missing * machine("aws", spec.type).vcpus
    quota = _find_quota(clients, spec)
    if quota is None:  # not everybody may ask: at least what these machines need
        code, name = (_SPOT if spec.spot else _ON_DEMAND)[family_of(spec.type)]
        return _format_command(spec, code, needed) + _format_reason(spec, code, name, needed)
    return format_quota_request(spec, quota, max(quota.used, quota.limit) + needed)


def check_quota(clients: Clients, spec: ClusterSpec, missing: int) -> Quota | None:
    """The limit for these machines; UserError with the request for more if it is too low, None if AWS does not say."""
    quota = _find_quota(clients, spec)
    needed = missing * machine("aws", spec.type).vcpus
    if quota and quota.used + needed > quota.limit:
        raise UserError(format_quota_request(spec, quota, quota.used + needed))
    return quota


def _find_quota(clients: Clients, spec: ClusterSpec) -> Quota | None:
    code, name = (_SPOT if spec.spot else _ON_DEMAND)[family_of(spec.type)]
    try:
        answer = clients.call("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        return Quota(code, name, float(answer["Quota"]["Value"]), _used(clients, spec))
    except CloudError:
        return None  # not everybody may ask; AWS itself will refuse what is too much


def family_of(machine_type: str) -> str:
    """Which quota counts a type of machine: `g4dn.xlarge` -> `G`."""
    letters = re.match("[a-z]+", machine_type)
    family = letters[0] if letters else ""
    return {"g": "G", "vt": "G", "gr": "G", "p": "P", "x": "X"}.get(family, "standard")


def _used(clients: Clients, spec: ClusterSpec) -> float:
    """Virtual processors of the machines that count already."""
    filters = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    reservations = clients.pages("ec2", "describe_instances", "Reservations", Filters=filters)
    return float(
        sum(
            _processors(instance.get("CpuOptions", {}))
            for reservation in reservations
            for instance in reservation["Instances"]
            if family_of(instance["InstanceType"]) == family_of(spec.type)
            and (instance.get("InstanceLifecycle") == "spot") == spec.spot
        )
    )


def _processors(options: dict[str, int]) -> int:
    return int(options.get("CoreCount", 1)) * int(options.get("ThreadsPerCore", 1))


def format_quota_request(spec: ClusterSpec, quota: Quota, wanted: float) -> str:
    """The quota that is too low, the command that requests more, and a reason for the request."""
    vcpus = machine("aws", spec.type).vcpus
    return (
        f"{spec.count} x {spec.type} need {spec.count * vcpus} virtual processors; in {spec.region} your account may "
        f"have {quota.limit:g} ({quota.name}), of which {quota.used:g} are in use. "
        + _format_command(spec, quota.code, wanted)
        + _format_reason(spec, quota.code, quota.name, wanted)
    )


def _format_command(spec: ClusterSpec, code: str, wanted: float) -> str:
    return (
        "Ask for more, which may take days:\n"
        f"  aws service-quotas request-service-quota-increase --region {spec.region} --service-code ec2 "
        f"--quota-code {code} --desired-value {wanted:g}\n"
    )


def _format_reason(spec: ClusterSpec, code: str, name: str, wanted: float) -> str:
    vcpus = machine("aws", spec.type).vcpus
    return (
        "and where AWS asks for the reason:\n"
        f"  Please raise the quota {code} ({name}) in {spec.region} to {wanted:g} virtual processors. "
        f"We train neural networks on {spec.count} {spec.type} machines of {vcpus} virtual processors each, for at "
        f"most {spec.hours:g} hours at a time, after which the machines terminate by themselves."
    )
