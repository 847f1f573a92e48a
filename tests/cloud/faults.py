"""AWS on a bad day: a layer before moto that does all that AWS's documentation says may happen.

What was just made is not found, or left out of lists; what is gone is listed still; calls are throttled; answers get
lost, of calls that were carried out or were not; zones have no machines left; credentials expire; the user presses
Ctrl-C, and our process is killed. A seed decides all of it, so that a plan that fails can be run again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from moto.backends import get_backend

from echelon.cloud.aws.calls import Clients, Clock
from tests.cloud.server import ACCOUNT, PLACEMENT, REGION

LONGEST_LAG_S = 90.0
_KINDS = {
    "GroupId": "group",
    "GroupIds": "group",
    "Groups": "group",
    "SecurityGroups": "group",
    "InstanceIds": "machine",
    "Resources": "machine",
    "KeyName": "key",
    "KeyNames": "key",
    "GroupName": "placement",
    "GroupNames": "placement",
    "FileSystemId": "files",
    "MountTargetId": "mount",
    "RoleName": "role",
    "InstanceProfileName": "profile",
    "IamInstanceProfile": "profile",
}
_CREATED = {
    "import_key_pair": ("key", "KeyName"),
    "create_security_group": ("group", "GroupId"),
    "create_placement_group": ("placement", "GroupName"),
    "create_file_system": ("files", "FileSystemId"),
    "create_mount_target": ("mount", "MountTargetId"),
    "create_role": ("role", "RoleName"),
    "create_instance_profile": ("profile", "InstanceProfileName"),
}
_LISTS = {
    "SecurityGroups": ("group", "GroupId"),
    "KeyPairs": ("key", "KeyName"),
    "PlacementGroups": ("placement", "GroupName"),
    "FileSystems": ("files", "FileSystemId"),
    "MountTargets": ("mount", "MountTargetId"),
    "Roles": ("role", "RoleName"),
    "InstanceProfiles": ("profile", "InstanceProfileName"),
    "Instances": ("machine", "InstanceId"),
}
_UNKNOWN = {
    "group": "InvalidGroup.NotFound",
    "machine": "InvalidInstanceID.NotFound",
    "key": "InvalidKeyPair.NotFound",
    "placement": "InvalidPlacementGroup.Unknown",
    "files": "FileSystemNotFound",
    "mount": "MountTargetNotFound",
    "role": "NoSuchEntity",
    "profile": "NoSuchEntity",
}


INCIDENTS = ("crash before", "crash", "interrupt before", "interrupt", "expired", "outage")


class CrashError(BaseException):
    """As if our process had been killed: nothing that we wrote catches it."""


@dataclass
class FaultPlan:
    """What goes wrong; made of a seed."""

    seed: int
    lag_s: float
    """How long what was made may stay unknown, and what was removed known."""
    throttled: float
    lost: float
    """How often, of all calls."""
    ready_s: float = 60.0
    """How long what was made may take until it can be used."""
    full_zones: frozenset[str] = frozenset()
    over_quota: bool = False
    ends_early: bool = False
    """One of the first machines ends while it starts."""
    incidents: dict[int | str, str] = field(default_factory=dict)
    """By the number of the call or pause at which it happens, or the name of the call after which it does: one of
    INCIDENTS."""


def make_plan(seed: int) -> FaultPlan:
    rng = random.Random(seed)
    zones = [f"{REGION}{letter}" for letter in "abcdef"]
    full = rng.sample(zones, rng.choice([1, 1, 2, 5, 6])) if rng.random() < 0.3 else []
    if full:
        full[0] = zones[0]  # where a cluster goes first
    kinds = (*INCIDENTS, "crash", "interrupt")
    return FaultPlan(
        seed,
        lag_s=rng.choice([0.0, 5.0, LONGEST_LAG_S]),
        throttled=rng.choice([0.0, 0.02, 0.1]),
        lost=rng.choice([0.0, 0.02, 0.1]),
        full_zones=frozenset(full),
        over_quota=rng.random() < 0.05,
        ends_early=rng.random() < 0.07,
        incidents={rng.randint(1, 110): rng.choice(kinds) for _ in range(rng.choice([0, 1, 1, 2, 3]))},
    )


class FaultyClients(Clients):
    """Clients of an AWS that follows a plan of faults."""

    def __init__(self, real: Clients, plan: FaultPlan) -> None:
        self._real = real
        super().__init__(REGION, Clock(real.clock.now, self._sleep))
        self._plan = plan
        self._rng = random.Random(plan.seed + 1)
        self.moments = 0
        """Calls and pauses so far."""
        self._busy_calls = 0
        self._unreachable_until = self._interfaces_until = 0.0
        self._is_expired = False
        self._known_from: dict[tuple[str, str], float] = {}
        self._ready_from: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}
        self._ghosts: dict[tuple[str, str], float] = {}

    def follow(self, plan: FaultPlan) -> None:
        """Follow another plan from here, in the same account."""
        self._plan, self.moments, self._is_expired, self._unreachable_until = plan, 0, False, 0.0

    def _sleep(self, seconds: float) -> None:
        incident = self._pass_moment()
        self._real.clock.sleep(seconds)
        self._strike(incident)

    def _pass_moment(self) -> str:
        """Count a call or a pause; what happens after it."""
        self.moments += 1
        incident = self._plan.incidents.pop(self.moments, "")
        match incident:
            case "crash before" | "interrupt before":
                self._strike(incident.removesuffix(" before"))
            case "expired":
                self._is_expired = True
            case "outage":
                self._unreachable_until = self.clock.now() + self._rng.uniform(5, 200)
        return incident

    def _strike(self, incident: str) -> None:
        if incident == "crash":
            raise CrashError
        if incident == "interrupt":
            raise KeyboardInterrupt

    def _send(self, service: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        incident = self._pass_moment()
        self._refuse_at_random(operation)
        is_lost = self._rng.random() < self._plan.lost
        if is_lost and self._rng.random() < 0.4:
            raise EndpointConnectionError(endpoint_url="https://aws")
        self._refuse_what_it_does_not_know(service, operation, arguments)
        self._refuse_what_is_in_use(operation, arguments)
        self._refuse_orders(operation, arguments)
        answer = self._real._send(service, operation, arguments)
        self._note(operation, arguments, answer)
        self._strike(incident)
        if operation in self._plan.incidents:
            incident = self._plan.incidents.pop(operation)
            self._strike(incident)
            is_lost, self._unreachable_until = True, self.clock.now() + 100
        if is_lost:
            raise self._rng.choice(
                [
                    ReadTimeoutError(endpoint_url="https://aws"),
                    _error("InternalError", operation),
                    _error("ServiceUnavailable", operation),
                ]
            )
        if not operation.startswith(("describe_", "list_")):
            return answer
        return self._as_seen_by_a_replica(answer, is_by_id=any(references(operation, arguments)))

    def _refuse_at_random(self, operation: str) -> None:
        if self.clock.now() < self._unreachable_until:
            raise EndpointConnectionError(endpoint_url="https://aws")
        if self._rng.random() < self._plan.throttled:
            self._busy_calls = self._rng.randint(1, 12)
        if self._busy_calls:
            self._busy_calls -= 1
            raise _error(self._rng.choice(["RequestLimitExceeded", "Throttling"]), operation)
        if self._is_expired:
            raise _error("ExpiredToken", operation)

    def _is_unknown(self, key: tuple[str, str]) -> bool:
        """Whether the replica that is asked has not heard of it; the next may have."""
        return self.clock.now() < self._known_from.get(key, 0.0) and self._rng.random() < 0.7

    def _refuse_what_it_does_not_know(self, service: str, operation: str, arguments: dict[str, Any]) -> None:
        for key in references(operation, arguments):
            if self._is_unknown(key):
                if operation == "run_instances" and key[0] == "profile":
                    raise _error("InvalidParameterValue", operation, "Invalid IAM Instance Profile name")
                is_group_of_files = service == "efs" and key[0] == "group"
                raise _error("SecurityGroupNotFound" if is_group_of_files else _UNKNOWN[key[0]], operation)

    def _refuse_what_is_in_use(self, operation: str, arguments: dict[str, Any]) -> None:
        ec2, efs = backends()
        running = [each for each in ec2.all_instances() if each.state != "terminated"]
        if operation == "delete_security_group":
            group = arguments["GroupId"]
            users = [*running, *efs.mount_targets_by_id.values()]
            named = [
                rule.source_group.get("GroupId")
                for other in ec2.describe_security_groups()
                if other.id != group
                for rule in other.ingress_rules
            ]
            if users or group in named or self.clock.now() < self._interfaces_until:
                raise _error("DependencyViolation", operation)
        if operation == "delete_placement_group" and running:
            raise _error("InvalidPlacementGroup.InUse", operation)

    def _refuse_orders(self, operation: str, arguments: dict[str, Any]) -> None:
        if operation != "run_instances":
            return
        ec2, _ = backends()
        if any(each.client_token == arguments["ClientToken"] for each in ec2.all_instances()):
            return  # carried out before
        subnet = ec2.get_subnet(arguments["NetworkInterfaces"][0]["SubnetId"])
        if subnet.availability_zone in self._plan.full_zones:
            raise _error("InsufficientInstanceCapacity", operation)
        if self._plan.over_quota:
            raise _error("VcpuLimitExceeded", operation)

    def _note(self, operation: str, arguments: dict[str, Any], answer: dict[str, Any]) -> None:
        """Decide when all of AWS knows of what has just been done."""
        now, lag = self.clock.now(), self._rng.uniform(0, self._plan.lag_s)
        new: list[tuple[str, str]] = []
        if operation in _CREATED:
            kind, key = _CREATED[operation]
            new = [(kind, str(arguments.get(key) or answer.get(key)))]
        elif operation == "run_instances":
            new = [("machine", instance["InstanceId"]) for instance in answer["Instances"]]
            if self._plan.ends_early:
                self._plan.ends_early = False
                backends()[0].terminate_instances([self._rng.choice(new)[1]])
        for each in new:
            self._known_from.setdefault(each, now + lag)
            self._ready_from.setdefault(each, now + self._rng.uniform(0, self._plan.ready_s))
            if each[0] != "machine":
                self._known_from[each] = now + lag
        if operation.startswith(("delete_", "terminate_")):
            self._interfaces_until = now + self._rng.uniform(0, self._plan.lag_s)
            for each in references(operation, arguments):
                self._ghosts[each] = now + lag

    def _as_seen_by_a_replica(self, answer: dict[str, Any], is_by_id: bool) -> dict[str, Any]:
        """The answer without what is too new, with what has just gone, and with states that lag behind."""
        if "Reservations" in answer:
            reservations = [self._as_seen_by_a_replica(each, is_by_id) for each in answer["Reservations"]]
            return {**answer, "Reservations": reservations}
        for name, (kind, id_key) in _LISTS.items():
            if name in answer and isinstance(answer[name], list):
                entries = [self._lag(kind, entry, str(entry[id_key])) for entry in answer[name]]
                there = {str(entry[id_key]) for entry in entries}
                ghosts = [] if is_by_id else self._appear(kind, there)
                known = [each for each in entries if not self._is_unknown((kind, str(each[id_key])))]
                answer = {**answer, name: [*known, *ghosts]}
        return answer

    def _appear(self, kind: str, there: set[str]) -> list[dict[str, Any]]:
        """What has gone and is listed still."""
        return [
            self._seen[key]
            for key, until in self._ghosts.items()
            if key[0] == kind != "machine"
            and key[1] not in there
            and key in self._seen
            and self.clock.now() < until
            and self._rng.random() < 0.5
        ]

    def _lag(self, kind: str, entry: dict[str, Any], id_: str) -> dict[str, Any]:
        key, now = (kind, id_), self.clock.now()
        self._seen[key] = entry
        if kind == "machine":
            if entry["State"]["Name"] == "terminated" and now < self._ghosts.get(key, 0.0):
                return {**entry, "State": {"Code": 32, "Name": "shutting-down"}}
            if entry["State"]["Name"] == "running" and now < self._ready_from.get(key, 0.0):
                rest = {name: value for name, value in entry.items() if name != "PublicIpAddress"}
                return {**rest, "State": {"Code": 0, "Name": "pending"}}
        if kind in ("files", "mount") and now < self._ready_from.get(key, 0.0):
            return {**entry, "LifeCycleState": "creating"}
        return entry


def references(operation: str, arguments: Any) -> Iterator[tuple[str, str]]:
    """What a call names that has to exist."""
    new = {_CREATED.get(operation, ("",))[0], "placement" if operation == "create_security_group" else ""}
    yield from ((kind, id_) for kind, id_ in _walk(arguments, "") if kind not in new)


def _walk(value: Any, kind: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(inner, _KINDS.get(name, kind))
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner, kind)
    elif isinstance(value, str) and kind:
        yield kind, value


def backends() -> tuple[Any, Any]:
    return get_backend("ec2")[ACCOUNT][REGION], get_backend("efs")[ACCOUNT][REGION]


def _error(code: str, operation: str, message: str = "no") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


def forget_ended_machines() -> None:
    """As AWS does after an hour."""
    backends()[0].reservations.clear()
    PLACEMENT.clear()
