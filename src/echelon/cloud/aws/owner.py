"""Ownership of clusters: every resource is tagged with its owner, so others cannot change or remove it by mistake."""

from __future__ import annotations

import re
from collections.abc import Collection

from echelon.cloud.aws.calls import Clients
from echelon.errors import UserError

_LONGEST_TAG = 256
_GENERATED_SESSION = re.compile(r"(:assumed-role/[^/]+)/(?:botocore|aws)[a-z-]*-\d+$", re.IGNORECASE)


def find_caller(clients: Clients) -> str:
    """The caller's ARN, in a form that fits a tag."""
    return render_owner(str(clients.call("sts", "get_caller_identity")["Arn"]))


def render_owner(arn: str) -> str:
    """An ARN as a tag's value: without the session's generated name, which changes with every command."""
    stable = _GENERATED_SESSION.sub(r"\1", arn)
    return re.sub(r"[^\w .:/=+@-]", "_", stable)[-_LONGEST_TAG:]


def account_of(arn: str) -> str:
    """The number of the account in an ARN; empty if it has none."""
    return arn.split(":")[4] if arn.count(":") > 4 else ""


def partition_of(arn: str) -> str:
    """The AWS partition: `aws`, or another such as `aws-cn`."""
    return arn.split(":")[1] if arn.startswith("arn:") else "aws"


def require_owner(name: str, owners: Collection[str], caller: str, *, is_forced: bool) -> None:
    """UserError if a cluster has another owner (unless forced), or is in another account than the caller's."""
    for owner in sorted(set(owners) - {caller, ""}):
        if account_of(owner) != account_of(caller):
            raise UserError(
                f"{name} is in the account {account_of(owner)}, and your credentials are of {account_of(caller)}; use "
                "those that it was made with (AWS_PROFILE)"
            )
        if not is_forced:
            raise UserError(f"{name} belongs to {owner}, and you are {caller}; if that is right, add --force")
