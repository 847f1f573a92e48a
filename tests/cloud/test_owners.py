"""Everything says whose it is, and nobody removes, changes or joins somebody else's cluster by mistake."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from rich.console import Console

from echelon.cloud import lifecycle
from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.owner import account_of, find_caller, partition_of, render_owner, require_owner
from echelon.cloud.aws.resources import find_everything
from echelon.cloud.journal import Journal
from echelon.commands import cloud
from echelon.errors import EchelonError, UserError
from tests.cloud.clusters import down, sample_spec, up
from tests.cloud.server import PLACEMENT, REGION, client, everything_left

ANN = "arn:aws:iam::123456789012:user/ann"


@pytest.mark.parametrize(
    ("arn", "owner"),
    [
        (ANN, ANN),
        (
            "arn:aws:sts::1:assumed-role/Admin/ann@example.org",
            "arn:aws:sts::1:assumed-role/Admin/ann@example.org",
        ),
        (
            "arn:aws:sts::1:assumed-role/Admin/botocore-session-1763453000",
            "arn:aws:sts::1:assumed-role/Admin",
        ),
        ("arn:aws:sts::1:assumed-role/Admin/AWS-CLI-session-1763453000", "arn:aws:sts::1:assumed-role/Admin"),
        ("arn:aws:iam::1:user/a,b", "arn:aws:iam::1:user/a_b"),
    ],
)
def test_an_owner_is_the_same_with_every_command_and_fits_into_a_tag(arn: str, owner: str) -> None:
    assert render_owner(arn) == owner
    assert len(render_owner(f"arn:aws:iam::1:user/{'x' * 600}/ann")) == 256


def test_accounts_and_partitions_of_owners() -> None:
    assert (account_of(ANN), account_of("")) == ("123456789012", "")
    assert (partition_of("arn:aws-cn:iam::1:user/a"), partition_of("")) == ("aws-cn", "aws")
    require_owner("wmt", [ANN, ""], ANN, is_forced=False)
    with pytest.raises(UserError, match=r"account 999.*credentials are of 123456789012"):
        require_owner("wmt", ["arn:aws:iam::999:user/bob"], ANN, is_forced=True)


def as_dict(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def tagged_resources() -> dict[str, dict[str, str]]:
    """The tags of all that has been made, by what it is."""
    ec2, iam = client("ec2"), client("iam")
    found: dict[str, Any] = {
        "machine": [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]],
        "disk": ec2.describe_volumes()["Volumes"],
        "group": [g for g in ec2.describe_security_groups()["SecurityGroups"] if g["GroupName"] != "default"],
        "key": ec2.describe_key_pairs()["KeyPairs"],
        "placement": PLACEMENT.values(),
        "files": client("efs").describe_file_systems()["FileSystems"],
        "role": [iam.get_role(RoleName=r["RoleName"])["Role"] for r in iam.list_roles()["Roles"]],
        "profile": iam.list_instance_profiles()["InstanceProfiles"],
    }
    return {
        f"{kind} {number}": as_dict(entry["Tags"])
        for kind, entries in found.items()
        for number, entry in enumerate(entries)
    }


def test_everything_carries_its_owner_and_the_users_own_tags(aws: Clients) -> None:
    orders, events = list[dict[str, Any]](), aws._client("ec2").meta.events

    def note(params: dict[str, Any], **_: Any) -> None:
        orders.append(params)

    events.register("provide-client-params.ec2.RunInstances", note, unique_id="note")
    cluster = up(aws, sample_spec(spot=True, tags={"team": "nlp", "cost center": "42"}))
    events.unregister("provide-client-params.ec2.RunInstances", unique_id="note")
    # moto gives these to nobody, so the order itself is looked at.
    ordered = {each["ResourceType"]: as_dict(each["Tags"]) for each in orders[0]["TagSpecifications"]}
    assert set(ordered) == {"instance", "volume", "network-interface", "spot-instances-request"}
    resources = {**tagged_resources(), **ordered}
    assert len({name.split()[0] for name in resources}) == 8 + 4
    for name, tags in resources.items():
        assert tags["echelon:owner"] == cluster.owner == find_caller(aws), name
        assert tags["echelon:cluster"] == "wmt", name
        assert (tags["team"], tags["cost center"]) == ("nlp", "42"), name


@pytest.mark.parametrize(
    "tags",
    [
        {"Name": "x"},
        {"aws:x": "y"},
        {"AWS:x": "y"},
        {"echelon:owner": "me"},
        {"": "x"},
        {"a\n": "x"},
        {"a": "x" * 257},
        {f"k{number}": "" for number in range(41)},
    ],
)
def test_tags_that_aws_or_echelon_would_not_take_are_refused(tags: dict[str, str]) -> None:
    with pytest.raises(UserError, match="tags"):
        sample_spec(tags=tags)


@pytest.fixture
def bob(aws: Clients, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Clients]:
    """Become somebody else, on another laptop."""

    def become() -> Clients:
        client("iam").create_user(UserName="bob")
        key = client("iam").create_access_key(UserName="bob")["AccessKey"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
        monkeypatch.setenv("ECHELON_STATE", os.environ["ECHELON_STATE"] + "-of-bob")
        clients = Clients(REGION)
        monkeypatch.setattr(
            cloud, "Clients", lambda region: clients
        )  # boto3 takes half a second to make new ones
        assert find_caller(clients).endswith(":user/bob")
        return clients

    return become


def test_somebody_elses_cluster_is_removed_only_by_force(aws: Clients, bob: Callable[[], Clients]) -> None:
    up(aws)
    before, clients = everything_left(), bob()

    def ask(question: str) -> bool:
        return True

    with pytest.raises(UserError, match=r"wmt belongs to arn:\S+, and you are arn:\S+bob; .* --force"):
        cloud.down("wmt", None, ask, Console(quiet=True))
    with pytest.raises(UserError, match="made by arn:"):
        up(clients)
    assert everything_left() == before
    assert "made by arn:" in cloud.format_list(cloud.list_clusters(None))
    cloud.down("wmt", None, ask, Console(quiet=True), is_forced=True)
    assert everything_left() == []


def test_somebody_elses_cluster_is_changed_only_by_force(
    aws: Clients, bob: Callable[[], Clients], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its record is: two people may share a computer."""
    monkeypatch.setattr(cloud, "Clients", lambda region: aws)
    monkeypatch.setattr(cloud, "make_ready", lambda cluster, console: None)
    file = tmp_path / "cluster.toml"
    file.write_text('name = "wmt"\ntype = "g4dn.2xlarge"\nssh_from = "203.0.113.7"\n')
    shared = os.environ["ECHELON_STATE"]
    cloud.up(file, lambda question: True, Console(quiet=True))
    bob()
    monkeypatch.setenv("ECHELON_STATE", shared)
    with pytest.raises(UserError, match="wmt belongs to"):
        cloud.up(file, lambda question: pytest.fail("asked"), Console(quiet=True))
    cloud.up(file, lambda question: True, Console(quiet=True), is_forced=True)


def test_credentials_of_another_account_do_not_forget_a_cluster(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud, "Clients", lambda region: aws)
    journal, cluster = Journal("wmt"), up(aws)
    journal.write(replace(cluster, owner="arn:aws:iam::999999999999:user/me"))
    with pytest.raises(UserError, match="account 999999999999"):
        cloud.down("wmt", None, lambda question: True, Console(quiet=True), is_forced=True)
    (listed,) = cloud.list_clusters(None)
    assert listed.state == "in account 999999999999, not asked"
    assert journal.read() is not None


def test_two_laptops_that_begin_at_once_do_not_share_a_cluster(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second finds nothing, begins, and meets the first one's names: it removes what is its own, and no more."""
    up(aws)
    before = everything_left()
    monkeypatch.setenv("ECHELON_STATE", os.environ["ECHELON_STATE"] + "-2")
    monkeypatch.setattr(lifecycle, "find_everything", lambda clients: [])
    with pytest.raises(EchelonError, match=r"Duplicate"):
        up(aws)
    assert everything_left() == before
    assert Journal("wmt").read() is None


def test_a_token_tells_a_cluster_from_another_of_its_name(aws: Clients) -> None:
    up(aws)
    journal, before = Journal("wmt"), everything_left()
    journal.write(replace(journal.require(), token="other", parts={}))
    assert down(aws).left == []
    assert everything_left() == before
    assert down(aws).left == [], "without a record, the name has to do"
    assert everything_left() == []
    assert find_everything(aws) == []


def test_names_that_have_become_another_clusters_are_left_alone(aws: Clients) -> None:
    """A colleague has removed ours by force, and made one of the same name; only our record says otherwise."""
    up(aws)
    journal, before = Journal("wmt"), everything_left()
    journal.write(replace(journal.require(), token="earlier"))
    with pytest.raises(EchelonError, match="it was not made for wmt"):
        up(aws)
    names = {"echelon-wmt", f"echelon-wmt.{REGION}", f"{REGION}/echelon-wmt"}
    assert names <= {*before}
    assert down(aws).left == []
    assert [name for name in before if name in names] == [name for name in everything_left() if name in names]


def test_a_role_is_removed_with_a_policy_that_a_stale_list_leaves_out(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    up(aws, sample_spec(ssm=True, ssh_from="auto"))
    call = Clients.call

    def stale(self: Clients, service: str, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "list_attached_role_policies":
            return {"AttachedPolicies": []}
        return call(self, service, operation, **arguments)

    monkeypatch.setattr(Clients, "call", stale)
    assert down(aws).left == []
    assert everything_left() == []


def test_who_may_not_ask_about_roles_can_remove_a_cluster_without_one(aws: Clients) -> None:
    up(aws, sample_spec(bucket=None))
    Journal("wmt").forget()
    events = aws._client("iam").meta.events

    def deny(model: Any, **_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, model.name)

    events.register("before-call", deny, unique_id="deny")
    try:
        assert down(aws).left == []
    finally:
        events.unregister("before-call", unique_id="deny")
    assert everything_left() == []
