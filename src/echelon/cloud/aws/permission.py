"""The permissions of a cluster's machines, without keys on them: one S3 address, and access through SSM."""

from __future__ import annotations

import json
from typing import Any

from echelon.cloud.aws.calls import NOT_FOUND
from echelon.cloud.aws.context import Context, Single
from echelon.cloud.aws.owner import partition_of
from echelon.errors import CloudError

ROLE_PATH = "/echelon/"
SSM_POLICY = "iam::aws:policy/AmazonSSMManagedInstanceCore"
"""AWS's managed policy for the Session Manager."""


class Role(Single):
    """The machines' role. Roles have no region, so the region is in the name."""

    name = "role"
    duplicate = "EntityAlreadyExists"

    def _list(self) -> list[str]:
        return _find(self._context, "get_role", "Role")

    def _exists(self, id_: str) -> bool:
        return self._context.is_ours(self._context.iam("get_role", RoleName=id_)["Role"].get("Tags", []))

    def _create(self) -> str:
        boundary = self._context.cluster.spec.boundary
        made = self._context.iam(
            "create_role",
            RoleName=self._context.account_name,
            Path=ROLE_PATH,
            AssumeRolePolicyDocument=json.dumps(MACHINES_MAY_ASSUME),
            Tags=self._context.tags("role"),
            **({"PermissionsBoundary": boundary} if boundary else {}),
        )
        return str(made["Role"]["RoleName"])

    def _complete(self, id_: str) -> None:
        spec = self._context.cluster.spec
        if spec.bucket:
            policy = json.dumps(bucket_policy(spec.bucket))
            self._context.iam("put_role_policy", RoleName=id_, PolicyName="bucket", PolicyDocument=policy)
        if spec.ssm:
            self._context.iam("attach_role_policy", RoleName=id_, PolicyArn=self._ssm_policy())

    def _ssm_policy(self) -> str:
        return f"arn:{partition_of(self._context.cluster.owner)}:{SSM_POLICY}"

    def remove(self, id_: str) -> None:
        if not self._is_there(id_):
            return
        cluster, delete = self._context.journal.read(), self._context.delete
        own = [self._ssm_policy()] if cluster and cluster.spec.ssm else []  # which a list might not have yet
        for policy in {*own, *self._attached_policies(id_)}:
            delete("iam", "detach_role_policy", RoleName=id_, PolicyArn=policy)
        if cluster is None or cluster.spec.bucket:
            delete("iam", "delete_role_policy", RoleName=id_, PolicyName="bucket")
        delete("iam", "delete_role", RoleName=id_)

    def _attached_policies(self, id_: str) -> list[str]:
        """Return policies attached by others too: a role that has one cannot be removed."""
        try:
            found = self._context.iam("list_attached_role_policies", RoleName=id_)["AttachedPolicies"]
        except CloudError as error:
            if error.code not in NOT_FOUND:
                raise
            return []
        return [str(policy["PolicyArn"]) for policy in found]


class InstanceProfile(Single):
    """The instance profile that gives the machines their role."""

    name = "instance profile"
    duplicate = "EntityAlreadyExists"

    def _list(self) -> list[str]:
        return _find(self._context, "get_instance_profile", "InstanceProfile")

    def _exists(self, id_: str) -> bool:
        found = self._context.iam("get_instance_profile", InstanceProfileName=id_)["InstanceProfile"]
        return self._context.is_ours(found.get("Tags", []))

    def _create(self) -> str:
        name = self._context.account_name
        tags = self._context.tags("profile")
        self._context.iam("create_instance_profile", InstanceProfileName=name, Path=ROLE_PATH, Tags=tags)
        return name

    def _complete(self, id_: str) -> None:
        role = self._context.id_of(Role.name)
        try:
            self._context.iam("add_role_to_instance_profile", InstanceProfileName=id_, RoleName=role)
        except CloudError as error:
            if error.code != "LimitExceeded":  # a profile has one role, and this one has its own
                raise

    def remove(self, id_: str) -> None:
        if not self._is_there(id_):
            return
        role = self._context.account_name
        self._context.delete(
            "iam", "remove_role_from_instance_profile", InstanceProfileName=id_, RoleName=role
        )
        self._context.delete("iam", "delete_instance_profile", InstanceProfileName=id_)


def _find(context: Context, operation: str, kind: str) -> list[str]:
    """The name of this cluster's role or profile; empty if there is none, or the name is another cluster's."""
    try:
        found = context.clients.call("iam", operation, **{f"{kind}Name": context.account_name})[kind]
    except CloudError as error:
        # Whoever rents without `bucket` and `ssm` need not be allowed to ask.
        is_unknown = context.journal.read() is None and error.code == "AccessDenied"
        if error.code not in NOT_FOUND and not is_unknown:
            raise
        return []
    return [context.account_name] if context.is_ours(found.get("Tags", [])) else []


MACHINES_MAY_ASSUME = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}


def bucket_policy(address: str) -> dict[str, Any]:
    """Reading and writing below one address of S3, and nothing else."""
    bucket, _, folder = address.removeprefix("s3://").partition("/")
    below = f"{folder.rstrip('/')}/*" if folder else "*"
    objects = {
        "Effect": "Allow",
        "Action": ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
        "Resource": f"arn:aws:s3:::{bucket}/{below}",
    }
    listing: dict[str, Any] = {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": f"arn:aws:s3:::{bucket}",
        **({"Condition": {"StringLike": {"s3:prefix": [folder.rstrip("/"), below]}}} if folder else {}),
    }
    return {"Version": "2012-10-17", "Statement": [objects, listing]}
