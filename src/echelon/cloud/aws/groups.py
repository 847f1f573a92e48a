"""The key pair, the security groups and the placement group of a cluster.

No rule that is made here admits the whole internet: cluster_spec.py refuses such networks, and HostsGroup looks again.
"""

from __future__ import annotations

from typing import Any

from echelon.cloud.aws.context import Single
from echelon.cloud.cluster_spec import ClusterSpec, allowed_network
from echelon.cloud.ssh_keys import make_key
from echelon.errors import CloudError

_SSH = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
_ANYWHERE = ({"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}, {"Ipv6Ranges": [{"CidrIpv6": "::/0"}]})


class KeyPair(Single):
    """The public half of a key made here, unless the user names one that AWS has."""

    name = "key pair"
    duplicate = "InvalidKeyPair.Duplicate"

    def _list(self) -> list[str]:
        found = self._context.ec2("describe_key_pairs", Filters=self._context.tag_filter("key"))["KeyPairs"]
        return [str(key["KeyName"]) for key in found]

    def _exists(self, id_: str) -> bool:
        found = self._context.one("ec2", "describe_key_pairs", "KeyPairs", KeyNames=[id_])
        return self._context.is_ours(found.get("Tags", []))

    def _create(self) -> str:
        public = make_key(self._context.journal.key, f"echelon {self._context.name}")
        made = self._context.ec2(
            "import_key_pair",
            KeyName=self._context.resource_name,
            PublicKeyMaterial=public.encode(),
            TagSpecifications=self._context.tag_specification("key-pair", "key"),
        )
        return str(made["KeyName"])

    def remove(self, id_: str) -> None:
        if self._is_there(id_):
            self._context.delete("ec2", "delete_key_pair", KeyName=id_)


class SecurityGroup(Single):
    """A group and its rules. No group refers to a later one, so that the last can always be removed."""

    duplicate = "InvalidGroup.Duplicate"
    part = ""
    about = ""

    def _list(self) -> list[str]:
        filters = self._context.tag_filter(self.part)
        pages = self._context.clients.pages
        found = pages("ec2", "describe_security_groups", "SecurityGroups", Filters=filters)
        return [str(group["GroupId"]) for group in found]

    def _exists(self, id_: str) -> bool:
        found = self._context.one("ec2", "describe_security_groups", "SecurityGroups", GroupIds=[id_])
        return bool(found)

    def _create(self) -> str:
        subnets = self._context.ec2("describe_subnets", SubnetIds=[self._context.cluster.subnet])["Subnets"]
        made = self._context.ec2(
            "create_security_group",
            GroupName=f"{self._context.resource_name}-{self.part}",
            Description=self.about.format(self._context.name),
            VpcId=str(subnets[0]["VpcId"]),
            TagSpecifications=self._context.tag_specification("security-group", self.part),
        )
        return str(made["GroupId"])

    def _change(self, operation: str, group: str, rule: dict[str, Any], is_so: str) -> None:
        """Change a rule; `is_so` is AWS's error code for a rule that is already as wanted."""
        try:
            self._context.ec2(operation, GroupId=group, IpPermissions=[rule])
        except CloudError as error:
            if error.code != is_so:
                raise

    def _admit(self, group: str, rule: dict[str, Any]) -> None:
        self._change("authorize_security_group_ingress", group, rule, "InvalidPermission.Duplicate")

    def remove(self, id_: str) -> None:
        self._context.delete("ec2", "delete_security_group", GroupId=id_)


class HostsGroup(SecurityGroup):
    """Hosts reach each other; one network reaches them over SSH."""

    name = "security group of the hosts"
    part = "hosts"
    about = "Hosts of {}: each other, and SSH from one address"

    def _complete(self, id_: str) -> None:
        self._admit(id_, {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": id_}]})
        wanted = self._ssh_from()
        for network in wanted:
            self._admit(id_, {**_SSH, "IpRanges": [{"CidrIp": network}]})
        self._close_others(id_, wanted)

    def _ssh_from(self) -> list[str]:
        """The rules for SSH; none if the Session Manager is used."""
        cluster = self._context.cluster
        return [] if cluster.spec.ssm else [str(allowed_network(cluster.ssh_from))]

    def _close_others(self, group: str, wanted: list[str]) -> None:
        """Revoke addresses that were allowed before: the user's own has changed."""
        found = self._context.one("ec2", "describe_security_groups", "SecurityGroups", GroupIds=[group])
        for rule in found["IpPermissions"]:
            for kind, cidr in (("IpRanges", "CidrIp"), ("Ipv6Ranges", "CidrIpv6")):
                old = [{cidr: entry[cidr]} for entry in rule.get(kind, []) if entry[cidr] not in wanted]
                if old and rule.get("FromPort") == 22:
                    closed = {**_SSH, kind: old}
                    self._change("revoke_security_group_ingress", group, closed, "InvalidPermission.NotFound")


class FilesGroup(SecurityGroup):
    """Hosts reach the file server over NFS; the file server reaches nothing."""

    name = "security group of the files"
    part = "files"
    about = "Shared files of {}: NFS from its hosts"

    def _complete(self, id_: str) -> None:
        hosts = self._context.id_of(HostsGroup.name)
        nfs = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049}
        self._admit(id_, {**nfs, "UserIdGroupPairs": [{"GroupId": hosts}]})
        # By itself AWS lets every new group send anywhere; a file server begins no conversation.
        for anywhere in _ANYWHERE:
            rule = {"IpProtocol": "-1", **anywhere}
            self._change("revoke_security_group_egress", id_, rule, "InvalidPermission.NotFound")


class PlacementGroup(Single):
    """Machines placed close together."""

    name = "placement group"
    duplicate = "InvalidPlacementGroup.Duplicate"

    def _list(self) -> list[str]:
        filters = self._context.tag_filter("placement")
        found = self._context.ec2("describe_placement_groups", Filters=filters)["PlacementGroups"]
        return [str(group["GroupName"]) for group in found if group.get("State") != "deleted"]

    def _exists(self, id_: str) -> bool:
        found = self._context.one("ec2", "describe_placement_groups", "PlacementGroups", GroupNames=[id_])
        return found["State"] in ("pending", "available") and self._context.is_ours(found.get("Tags", []))

    def _create(self) -> str:
        name = self._context.resource_name
        tags = self._context.tag_specification("placement-group", "placement")
        self._context.ec2(
            "create_placement_group", GroupName=name, Strategy="cluster", TagSpecifications=tags
        )
        return name

    def remove(self, id_: str) -> None:
        if self._is_there(id_):
            self._context.delete("ec2", "delete_placement_group", GroupName=id_)


def uses_placement(spec: ClusterSpec) -> bool:
    """AWS has no placement groups for its t machines."""
    return spec.placement and spec.count > 1 and not spec.type.startswith("t")
