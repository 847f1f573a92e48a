"""The key pair, the security groups and the placement group of a cluster.

No rule that is made here admits the whole internet: spec.py refuses such networks, and _admit looks again.
"""

from __future__ import annotations

from typing import Any

from echelon.cloud.aws.calls import NOT_FOUND, gone_is_fine
from echelon.cloud.aws.context import GONE_S, Context
from echelon.cloud.keys import make_key
from echelon.cloud.parts import wait_until
from echelon.cloud.spec import ClusterSpec, allowed_network
from echelon.errors import CloudError


class KeyPair:
    """AWS gets the public half of a key that is made here, unless the user names one that it has."""

    name = "key pair"

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        found = self._context.ec2("describe_key_pairs", Filters=self._context.tag_filter("key"))["KeyPairs"]
        return [str(key["KeyName"]) for key in found]

    def make(self) -> list[str]:
        public = make_key(self._context.journal.key, f"echelon {self._context.name}")
        found = self.find()
        if found:
            return found
        made = self._context.ec2(
            "import_key_pair",
            KeyName=self._context.resource_name,
            PublicKeyMaterial=public.encode(),
            TagSpecifications=self._context.tag_specification("key-pair", "key"),
        )
        return [str(made["KeyName"])]

    def remove(self, id_: str) -> None:
        with gone_is_fine():
            self._context.ec2("delete_key_pair", KeyName=id_)


class SecurityGroup:
    """A group, its rules, and how it goes."""

    name = "security group"
    part = ""

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        return find_groups(self._context, self.part)

    def remove(self, id_: str) -> None:
        def is_gone() -> bool:
            try:
                self._context.ec2("delete_security_group", GroupId=id_)
            except CloudError as error:
                if error.code == "DependencyViolation":  # network cards go some time after what had them
                    return False
                if error.code not in NOT_FOUND:
                    raise
            return True

        with gone_is_fine():  # the group, or one that its rules name
            self._empty(id_)
        wait_until(is_gone, f"removing {id_}", GONE_S)

    def _empty(self, id_: str) -> None:
        """Groups that name each other cannot be removed."""
        rules = self._rules(id_, "IpPermissions")
        if rules:
            self._context.ec2("revoke_security_group_ingress", GroupId=id_, IpPermissions=rules)

    def _rules(self, id_: str, direction: str) -> list[dict[str, Any]]:
        groups = self._context.ec2("describe_security_groups", GroupIds=[id_])["SecurityGroups"]
        return [rule for group in groups for rule in group.get(direction, [])]

    def _make_empty(self, about: str) -> str:
        found = self.find()
        if found:
            return found[0]
        subnets = self._context.ec2("describe_subnets", SubnetIds=[self._context.cluster.subnet])["Subnets"]
        made = self._context.ec2(
            "create_security_group",
            GroupName=f"{self._context.resource_name}-{self.part}",
            Description=about,
            VpcId=str(subnets[0]["VpcId"]),
            TagSpecifications=self._context.tag_specification("security-group", self.part),
        )
        return str(made["GroupId"])

    def _admit(self, group: str, rule: dict[str, Any]) -> None:
        try:
            self._context.ec2("authorize_security_group_ingress", GroupId=group, IpPermissions=[rule])
        except CloudError as error:
            if error.code != "InvalidPermission.Duplicate":
                raise


class HostsGroup(SecurityGroup):
    """The hosts reach each other; one address reaches them, over SSH."""

    name = "security group of the hosts"
    part = "hosts"

    def make(self) -> list[str]:
        group = self._make_empty(f"Hosts of {self._context.name}: each other, and SSH from one address")
        self._admit(group, {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]})
        self._admit(group, {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **self._ssh_from()})
        return [group]

    def _ssh_from(self) -> dict[str, Any]:
        network = allowed_network(self._context.cluster.ssh_from)
        if network.version == 6:
            return {"Ipv6Ranges": [{"CidrIpv6": str(network)}]}
        return {"IpRanges": [{"CidrIp": str(network)}]}


class FilesGroup(SecurityGroup):
    """The hosts reach the file server, over NFS; the file server reaches nobody."""

    name = "security group of the files"
    part = "files"

    def make(self) -> list[str]:
        group = self._make_empty(f"Shared files of {self._context.name}: NFS from its hosts")
        hosts = find_groups(self._context, HostsGroup.part)
        nfs = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
        self._admit(group, {**nfs, "UserIdGroupPairs": [{"GroupId": hosts[0]}]})
        # By itself AWS lets every new group send anywhere; a file server begins no conversation.
        rules = self._rules(group, "IpPermissionsEgress")
        if rules:
            self._context.ec2("revoke_security_group_egress", GroupId=group, IpPermissions=rules)
        return [group]


def find_groups(context: Context, part: str) -> list[str]:
    """The identifiers of a cluster's groups of one kind."""
    filters = context.tag_filter(part)
    found = context.clients.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
    return [str(group["GroupId"]) for group in found]


class Placement:
    """Machines that stand close together."""

    name = "placement group"

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        found = self._context.ec2("describe_placement_groups", Filters=self._context.tag_filter("placement"))[
            "PlacementGroups"
        ]
        return [str(group["GroupName"]) for group in found if group.get("State") != "deleted"]

    def make(self) -> list[str]:
        found = self.find()
        if found:
            return found
        name = self._context.resource_name
        tags = self._context.tag_specification("placement-group", "placement")
        self._context.ec2(
            "create_placement_group", GroupName=name, Strategy="cluster", TagSpecifications=tags
        )
        return [name]

    def remove(self, id_: str) -> None:
        with gone_is_fine():
            self._context.ec2("delete_placement_group", GroupName=id_)


def uses_placement(spec: ClusterSpec) -> bool:
    """AWS has no placement groups for its t machines."""
    return spec.placement and spec.count > 1 and not spec.type.startswith("t")
