"""docs/cloud.md's policy is what the verbs need and nothing else: every call to AWS is compared with it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from echelon.cloud.aws import calls
from echelon.cloud.aws.permission import bucket_policy
from echelon.cloud.aws.price_api import API_REGION, fetch_prices
from echelon.commands import cloud
from echelon.recipe.toml import dump_table
from tests.cloud.clusters import virtual_clock
from tests.cloud.price_server import price_server, product
from tests.cloud.server import ACCOUNT, REGION, client, everything_left
from tests.cloud.test_site import make_subnet

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cloud.md").read_text()
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/echelon-boundary"
OURS = {"aws:ResourceTag/echelon:cluster": "wmt"}


def statements(name: str) -> list[dict[str, Any]]:
    (text,) = re.findall(rf"^```json {name}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
    found: list[dict[str, Any]] = json.loads(text)["Statement"]
    return found


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


@dataclass(frozen=True)
class Request:
    """An action, on what, and under which circumstances, as IAM sees it."""

    action: str
    resource: str = ""
    """An ARN; empty if the test does not know it, or if the action has none."""
    context: dict[str, str] = field(default_factory=dict, hash=False)

    def is_allowed_by(self, statement: dict[str, Any]) -> bool:
        if self.action not in as_list(statement["Action"]):
            return False
        patterns = as_list(statement["Resource"])
        if self.resource and not any(fnmatchcase(self.resource, pattern) for pattern in patterns):
            return False
        return all(
            self._fulfils(operator, key, as_list(wanted))
            for operator, conditions in statement.get("Condition", {}).items()
            for key, wanted in conditions.items()
        )

    def _fulfils(self, operator: str, key: str, wanted: list[str]) -> bool:
        if operator == "Null":
            return (key not in self.context) == (wanted == ["true"])
        assert operator == "StringEquals", operator
        return self.context.get(key) in wanted


def requests_of(service: str, operation: str, params: dict[str, Any]) -> list[Request]:
    """What a call asks IAM for: itself, and what AWS documents that it needs beside."""
    action = f"{service}:{operation}"
    match service:
        case "sts":
            return []  # everybody may ask who they are
        case "iam":
            return iam_requests(operation, params)
        case "elasticfilesystem":
            return [Request(action, "", EFS_CONTEXT.get(operation, {})), *EFS_NEEDS.get(operation, [])]
        case "ssm":
            return [Request(action, f"arn:aws:ssm:{REGION}::parameter{params['Name']}")]
        case "ec2":
            return [
                Request(action, "", {} if operation.startswith(NEW) else OURS),
                *ec2_needs(operation, params),
            ]
    return [Request(action)]


def iam_requests(operation: str, params: dict[str, Any]) -> list[Request]:
    action, context = f"iam:{operation}", dict[str, str]()
    if operation in ("ListRoles", "ListInstanceProfiles"):
        return [Request(action)]
    role, profile = (
        arn("role", params.get("RoleName")),
        arn("instance-profile", params.get("InstanceProfileName")),
    )
    if operation == "CreateRole":
        context = {"iam:PermissionsBoundary": params.get("PermissionsBoundary", "")}
    if operation in ("PutRolePolicy", "AttachRolePolicy"):
        context = {"iam:PermissionsBoundary": BOUNDARY}
    needs = {
        "CreateRole": [Request("iam:TagRole", role)],
        "CreateInstanceProfile": [Request("iam:TagInstanceProfile", profile)],
        "AddRoleToInstanceProfile": [pass_role(params.get("RoleName"))],
    }
    resource = profile if "InstanceProfileName" in params else role
    return [Request(action, resource, context), *needs.get(operation, [])]


def ec2_needs(operation: str, params: dict[str, Any]) -> Iterator[Request]:
    if "TagSpecifications" in params:
        yield Request("ec2:CreateTags", "", {"ec2:CreateAction": operation})
    if "IamInstanceProfile" in params:
        yield pass_role(params["IamInstanceProfile"]["Name"])
    if "InstanceMarketOptions" in params:
        yield service_role("spot.amazonaws.com")


def arn(kind: str, name: Any) -> str:
    return f"arn:aws:iam::{ACCOUNT}:{kind}/echelon/{name}"


def pass_role(name: Any) -> Request:
    return Request("iam:PassRole", arn("role", name), {"iam:PassedToService": "ec2.amazonaws.com"})


def service_role(service: str) -> Request:
    role = f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/{service}/X"
    return Request("iam:CreateServiceLinkedRole", role, {"iam:AWSServiceName": service})


NEW = ("Describe", "Run", "CreateSecurityGroup", "CreatePlacementGroup", "Import")
"""Calls of EC2 about nothing that is there already."""
EFS_CONTEXT = dict.fromkeys(("CreateMountTarget", "DeleteMountTarget", "DeleteFileSystem"), OURS)
EFS_NEEDS = {
    "CreateFileSystem": [
        Request("elasticfilesystem:TagResource", "", {"elasticfilesystem:CreateAction": "CreateFileSystem"}),
        service_role("elasticfilesystem.amazonaws.com"),
    ],
    "CreateMountTarget": [
        Request("ec2:DescribeSubnets"),
        Request("ec2:DescribeNetworkInterfaces"),
        Request("ec2:CreateNetworkInterface"),
    ],
    "DeleteMountTarget": [Request("ec2:DeleteNetworkInterface")],
}


@pytest.fixture
def recorded(aws: Any, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What the verbs ask for, from now on."""
    found, open_session = list[Request](), calls._open_session

    def note(params: dict[str, Any], model: Any, **_: Any) -> None:
        found.extend(requests_of(model.service_model.signing_name, model.name, params))

    def open_recorded(region: str | None) -> Any:
        session = open_session(region)
        session.events.register("provide-client-params", note)
        return session

    monkeypatch.setattr(calls, "_open_session", open_recorded)
    once = calls.Clients(REGION, virtual_clock())  # boto3 takes half a second to make new ones
    monkeypatch.setattr(cloud, "Clients", lambda region: once)
    monkeypatch.setattr(cloud, "make_ready", lambda cluster, console: None)
    monkeypatch.setattr("shutil.which", lambda tool: f"/bin/{tool}")
    return found


@pytest.fixture
def run_verbs(tmp_path: Path) -> Callable[..., None]:
    """up, list and down, with a cluster.toml; `moves` to another address and comes up again."""

    def run(moves: str = "", **settings: Any) -> None:
        file, quiet = tmp_path / "cluster.toml", Console(quiet=True)
        for changes in ({}, *([{"ssh_from": moves}] if moves else [])):
            file.write_text(dump_table({"name": "wmt", "type": "g4dn.2xlarge", **settings, **changes}))
            cloud.up(file, lambda question: True, quiet)
        cloud.list_clusters(None)
        cloud.down("wmt", None, lambda question: True, quiet)
        assert everything_left() == [key for key in [settings.get("key_name")] if key]

    return run


def ask_for_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `cloud prices --refresh` does."""
    with price_server() as (address, state):
        monkeypatch.setenv("AWS_ENDPOINT_URL_PRICING", address)
        state.products = [product("g5.xlarge", REGION, "2.0")]
        fetch_prices(calls.Clients(API_REGION), ["g5.xlarge"], REGION)


def test_the_policy_is_what_the_verbs_need_and_nothing_else(
    recorded: list[Request], run_verbs: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = "203.0.113.7"
    run_verbs(
        "198.51.100.9",
        ssh_from=home,
        count=2,
        spot=True,
        bucket="s3://mine/runs",
        boundary=BOUNDARY,
        tags={"team": "nlp"},
    )
    vpc, subnet = make_subnet()
    run_verbs(vpc=vpc, subnet=subnet, ssm=True, boundary=BOUNDARY)
    vpc, subnet = make_subnet(has_gateway=True)
    client("ec2").create_key_pair(KeyName="mine")
    key = tmp_path / "key"
    key.write_text("key")
    run_verbs(ssh_from=home, vpc=vpc, subnet=subnet, shared=False, key_name="mine", key_file=str(key))
    ask_for_prices(monkeypatch)

    policy = statements("policy")
    missing = {r.action for r in recorded if not any(r.is_allowed_by(each) for each in policy)}
    assert missing == set()
    superfluous = {
        f"{each['Sid']} {action}"
        for each in policy
        for action in as_list(each["Action"])
        if not any(r.action == action and r.is_allowed_by(each) for r in recorded)
    }
    assert superfluous == set()


def test_nobody_makes_a_role_beyond_the_boundary_or_touches_what_is_not_ours() -> None:
    policy, role = statements("policy"), f"arn:aws:iam::{ACCOUNT}:role/echelon/x"
    within, to_machines = {"iam:PermissionsBoundary": BOUNDARY}, {"iam:PassedToService": "ec2.amazonaws.com"}
    allowed = [Request("iam:CreateRole", role, within), Request("iam:PassRole", role, to_machines)]
    assert all(any(each.is_allowed_by(statement) for statement in policy) for each in allowed)
    admin = f"arn:aws:iam::{ACCOUNT}:role/admin"
    for request in (
        Request("iam:CreateRole", role),
        Request("iam:CreateRole", role, {"iam:PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/mine"}),
        Request("iam:CreateRole", admin, within),
        Request("iam:PutRolePolicy", admin, within),
        Request("iam:AttachRolePolicy", role),
        Request("iam:PassRole", admin, to_machines),
        Request("iam:PassRole", role, {"iam:PassedToService": "lambda.amazonaws.com"}),
        Request("iam:DeleteRolePermissionsBoundary", role),
        Request("iam:PutRolePermissionsBoundary", role),
        Request("iam:UpdateAssumeRolePolicy", role),
        Request("iam:CreatePolicyVersion"),
        Request("ec2:TerminateInstances"),
        Request("ec2:DeleteSecurityGroup"),
        Request("ec2:CreateTags"),
        Request("elasticfilesystem:DeleteFileSystem"),
    ):
        assert not any(request.is_allowed_by(statement) for statement in policy), request
    assert not any("*" in action for statement in policy for action in as_list(statement["Action"]))


def test_the_boundary_is_what_machines_are_given_and_no_more() -> None:
    granted = {
        action for each in bucket_policy("s3://mine/runs")["Statement"] for action in as_list(each["Action"])
    }
    sessions = {
        f"ssmmessages:{verb}{kind}Channel" for verb in ("Create", "Open") for kind in ("Control", "Data")
    }
    boundary = statements("boundary")
    assert {action for each in boundary for action in as_list(each["Action"])} == {
        *granted,
        *sessions,
        "ssm:UpdateInstanceInformation",
    }


def test_sessions_are_with_our_machines_only() -> None:
    policy = statements("sessions")
    instance = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1"
    document = f"arn:aws:ssm:{REGION}::document/"

    def is_allowed(request: Request) -> bool:
        return any(request.is_allowed_by(each) for each in policy)

    assert is_allowed(Request("ssm:StartSession", instance, OURS))
    assert is_allowed(Request("ssm:StartSession", f"{document}AWS-StartSSHSession"))
    assert not is_allowed(Request("ssm:StartSession", instance))
    assert not is_allowed(Request("ssm:StartSession", f"{document}AWS-RunShellScript"))
