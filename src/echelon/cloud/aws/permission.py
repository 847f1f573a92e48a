"""Permission for the machines of a cluster to use one address of S3, without any key on them."""

from __future__ import annotations

import json
from typing import Any

from echelon.cloud.aws.calls import gone_is_fine
from echelon.cloud.aws.context import Context

ROLE_PATH = "/echelon/"


class Role:
    """What the machines may do."""

    name = "role"

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        found = self._context.clients.pages("iam", "list_roles", "Roles", PathPrefix=ROLE_PATH)
        return [str(role["RoleName"]) for role in found if role["RoleName"] == self._context.resource_name]

    def make(self) -> list[str]:
        bucket = self._context.cluster.spec.bucket
        assert bucket is not None, "a cluster without a bucket has no role"
        if not self.find():
            self._context.iam(
                "create_role",
                RoleName=self._context.resource_name,
                Path=ROLE_PATH,
                AssumeRolePolicyDocument=json.dumps(MACHINES_MAY_ASSUME),
                Tags=self._context.tags("role"),
            )
        policy = json.dumps(bucket_policy(bucket))
        self._context.iam(
            "put_role_policy",
            RoleName=self._context.resource_name,
            PolicyName="bucket",
            PolicyDocument=policy,
        )
        return [self._context.resource_name]

    def remove(self, id_: str) -> None:
        with gone_is_fine():
            self._context.iam("delete_role_policy", RoleName=id_, PolicyName="bucket")
        with gone_is_fine():
            self._context.iam("delete_role", RoleName=id_)


class Profile:
    """What gives the machines their role."""

    name = "instance profile"

    def __init__(self, context: Context) -> None:
        self._context = context

    def find(self) -> list[str]:
        found = self._context.clients.pages(
            "iam", "list_instance_profiles", "InstanceProfiles", PathPrefix=ROLE_PATH
        )
        return [
            str(profile["InstanceProfileName"])
            for profile in found
            if profile["InstanceProfileName"] == self._context.resource_name
        ]

    def make(self) -> list[str]:
        name = self._context.resource_name
        if not self.find():
            tags = self._context.tags("profile")
            self._context.iam("create_instance_profile", InstanceProfileName=name, Path=ROLE_PATH, Tags=tags)
        profile = self._context.iam("get_instance_profile", InstanceProfileName=name)["InstanceProfile"]
        if not profile["Roles"]:
            self._context.iam("add_role_to_instance_profile", InstanceProfileName=name, RoleName=name)
        return [name]

    def remove(self, id_: str) -> None:
        with gone_is_fine():
            profile = self._context.iam("get_instance_profile", InstanceProfileName=id_)["InstanceProfile"]
            for role in profile["Roles"]:
                name = str(role["RoleName"])
                self._context.iam("remove_role_from_instance_profile", InstanceProfileName=id_, RoleName=name)
            self._context.iam("delete_instance_profile", InstanceProfileName=id_)


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
