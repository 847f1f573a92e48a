"""Clusters against moto, through boto3 as it comes: made, found again, removed, and never forgotten."""

from __future__ import annotations

import base64
import ipaddress
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from botocore.exceptions import ClientError

from echelon.cloud.aws.aws_cluster import AwsCluster
from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.image import RootDisk
from echelon.cloud.aws.resources import find_everything
from echelon.cloud.aws.zones import other_subnets
from echelon.cloud.bill import estimate
from echelon.cloud.journal import ClusterRecord, Journal, known_clusters
from echelon.cloud.lifecycle import bring_up, cost_so_far
from echelon.commands.rented_hosts import Rented
from echelon.errors import CloudError, UserError
from tests.cloud.clusters import age, down, sample_spec, up
from tests.cloud.faults import CrashError
from tests.cloud.server import client, everything_left
from tests.cloud.test_site import make_subnet


@contextmanager
def refused(clients: Clients, code: str, operation: str = "RunInstances") -> Iterator[None]:
    """AWS refuses all calls of one kind."""
    events = clients._client("ec2").meta.events

    def answer(**_: Any) -> NoReturn:
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, operation)

    events.register(f"before-call.ec2.{operation}", answer, unique_id="refused")
    try:
        yield
    finally:
        events.unregister(f"before-call.ec2.{operation}", unique_id="refused")


def test_a_cluster_has_what_its_spec_says(aws: Clients) -> None:
    cluster = up(aws)
    assert [host.number for host in cluster.hosts] == [0, 1]
    ec2 = client("ec2")
    instances = [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
    assert len(instances) == 2
    for instance in instances:
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        assert tags["echelon:cluster"] == "wmt"
        assert tags["Name"] == f"wmt-{tags['echelon:host']}"
        assert instance["MetadataOptions"]["HttpTokens"] == "required"
        assert instance["InstanceType"] == "g4dn.2xlarge"
        behaviour = ec2.describe_instance_attribute(
            InstanceId=instance["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
        )
        assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    (system,) = client("efs").describe_file_systems()["FileSystems"]
    assert system["Encrypted"] is True
    assert system["NumberOfMountTargets"] == 1
    volumes = ec2.describe_volumes()["Volumes"]
    assert {(volume["Size"], volume["Encrypted"]) for volume in volumes} == {(150, True)}


def test_the_machines_are_told_when_to_end_and_what_to_mount(aws: Clients) -> None:
    cluster = up(aws, sample_spec(spot=True, hours=3))
    ec2 = client("ec2")
    answer = ec2.describe_instance_attribute(InstanceId=cluster.hosts[0].id, Attribute="userData")
    text = base64.b64decode(answer["UserData"]["Value"]).decode()
    assert f"DEADLINE={int(cluster.deadline)} " in text
    assert cluster.deadline - cluster.created == pytest.approx(3 * 3600)
    (system,) = client("efs").describe_file_systems()["FileSystems"]
    (mount,) = client("efs").describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
    assert f"{mount['IpAddress']}:/" in text, "its name needs a network with DNS host names"
    assert "spot/instance-action" in text


def test_a_budget_sets_the_end_of_the_machines(aws: Clients) -> None:
    spec = sample_spec(hours=12, budget=3, bucket=None)
    cluster = up(aws, spec)
    hours = (cluster.deadline - cluster.created) / 3600
    assert hours == pytest.approx(3 / estimate(spec).hourly)
    assert cost_so_far(cluster, cluster.deadline) == pytest.approx(3)
    answer = client("ec2").describe_instance_attribute(InstanceId=cluster.hosts[0].id, Attribute="userData")
    assert f"DEADLINE={int(cluster.deadline)} " in base64.b64decode(answer["UserData"]["Value"]).decode()


def open_rules() -> list[dict[str, Any]]:
    """The rules of all our groups that admit the whole internet, or nearly."""
    ec2 = client("ec2")
    ours = ec2.describe_security_groups(Filters=[{"Name": "tag-key", "Values": ["echelon:cluster"]}])
    rules = [rule for group in ours["SecurityGroups"] for rule in group["IpPermissions"]]
    assert rules
    ranges = [
        *((rule, entry["CidrIp"]) for rule in rules for entry in rule.get("IpRanges", [])),
        *((rule, entry["CidrIpv6"]) for rule in rules for entry in rule.get("Ipv6Ranges", [])),
    ]
    return [rule for rule, cidr in ranges if ipaddress.ip_network(cidr).prefixlen < 16]


def test_no_rule_of_ours_admits_the_internet(aws: Clients) -> None:
    up(aws)
    assert open_rules() == []
    ec2 = client("ec2")
    ours = ec2.describe_security_groups(Filters=[{"Name": "tag-key", "Values": ["echelon:cluster"]}])
    hosts, files = sorted(ours["SecurityGroups"], key=lambda group: str(group["GroupName"]), reverse=True)
    by_ports = {rule.get("FromPort"): rule for rule in hosts["IpPermissions"]}
    assert set(by_ports) == {None, 22}, "everything from itself, and SSH"
    assert [pair["GroupId"] for pair in by_ports[None]["UserIdGroupPairs"]] == [hosts["GroupId"]]
    (nfs,) = files["IpPermissions"]
    assert (nfs["FromPort"], nfs["ToPort"]) == (2049, 2049)
    assert [pair["GroupId"] for pair in nfs["UserIdGroupPairs"]] == [hosts["GroupId"]]
    assert files["IpPermissionsEgress"] == [], "the file server reaches nobody"


@pytest.mark.parametrize(
    "address", ["::/0", "2000::/3", "2001:db8::7", "::ffff:0.0.0.0/96", "::ffff:203.0.113.7"]
)
def test_an_address_that_does_not_reach_the_machines_is_refused(address: str) -> None:
    with pytest.raises(UserError, match="name your IPv4 address"):
        sample_spec(ssh_from=address)


@pytest.mark.parametrize("address", ["0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1", "10.0.0.0/8"])
def test_the_internet_is_refused_before_anything_is_made(address: str) -> None:
    with pytest.raises(UserError, match="too much of the internet"):
        sample_spec(ssh_from=address)


def test_the_internet_is_refused_again_where_the_rule_is_made(aws: Clients) -> None:
    up(aws)
    journal = Journal("wmt")
    journal.write(replace(journal.require(), ssh_from="0.0.0.0/0"))
    group = next(part for part in AwsCluster(aws, journal).parts() if "hosts" in part.name)
    with pytest.raises(ValueError, match="too much of the internet"):
        group.make()
    assert open_rules() == []


def test_down_leaves_an_empty_account_and_may_be_repeated(aws: Clients) -> None:
    up(aws)
    assert down(aws).left == []
    assert everything_left() == []
    assert known_clusters() == []
    assert down(aws).left == []


def test_the_same_command_again_changes_nothing(aws: Clients) -> None:
    first = up(aws)
    before = everything_left()
    assert up(aws) == first
    assert everything_left() == before


def test_a_machine_that_ended_is_made_again(aws: Clients) -> None:
    first = up(aws)
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id])
    second = up(aws)
    assert [host.number for host in second.hosts] == [0, 1]
    assert second.hosts[0].id != first.hosts[0].id
    assert second.hosts[1] == first.hosts[1]


def test_a_machine_that_ends_while_it_starts_does_not_keep_the_next_from_being_made(aws: Clients) -> None:
    first = up(aws)
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id])
    events, orders = aws._client("ec2").meta.events, list[str]()

    def refuse_ended(params: dict[str, Any], **_: Any) -> None:
        token = params["body"]["ClientToken"]
        if token in orders:
            error = {"Code": "IdempotentInstanceTerminated", "Message": "ended"}
            raise ClientError({"Error": error}, "RunInstances")
        orders.append(token)

    def end(parsed: dict[str, Any], **_: Any) -> None:
        client("ec2").terminate_instances(InstanceIds=[i["InstanceId"] for i in parsed["Instances"]])

    events.register("before-call.ec2.RunInstances", refuse_ended, unique_id="refuse")
    events.register("after-call.ec2.RunInstances", end, unique_id="end")
    try:
        with pytest.raises(CloudError, match="ended while it was starting"):
            up(aws)
        events.unregister("after-call.ec2.RunInstances", unique_id="end")
        second = up(aws)
    finally:
        events.unregister("before-call.ec2.RunInstances", unique_id="refuse")
        events.unregister("after-call.ec2.RunInstances", unique_id="end")
    assert [host.number for host in second.hosts] == [0, 1]
    assert len(orders) == 2


def test_two_commands_do_not_make_and_remove_the_same_cluster_at_once(aws: Clients) -> None:
    with Journal("wmt").lock():
        for command in (up, down):
            with pytest.raises(UserError, match="wmt: another command is making or removing it"):
                command(aws)
    assert everything_left() == []
    up(aws)
    down(aws)


def test_two_clusters_side_by_side_do_not_touch_each_other(aws: Clients) -> None:
    up(aws)
    other = up(aws, sample_spec(name="other", bucket=None))
    assert down(aws).left == []
    assert {found.cluster for found in find_everything(aws)} == {"other"}
    assert AwsCluster(aws, Journal("other")).machines.hosts() == list(other.hosts)
    assert down(aws, "other").left == []
    assert everything_left() == []


def test_a_lost_state_is_found_by_its_tags_and_removed(aws: Clients) -> None:
    up(aws)
    Journal("wmt").forget()
    kinds = {found.kind for found in find_everything(aws) if found.cluster == "wmt"}
    assert kinds == {
        "machine",
        "file system",
        "security group",
        "key pair",
        "placement group",
        "role",
        "instance profile",
    }
    with pytest.raises(UserError, match="not written down here"):
        up(aws)
    assert down(aws).left == []
    assert everything_left() == []


def test_ctrl_c_removes_what_was_made(aws: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("echelon.cloud.aws.machines.Machines.wait_for_machines", interrupt)
    with pytest.raises(CloudError, match="interrupted"):
        up(aws)
    assert everything_left() == []
    assert known_clusters() == []


def test_a_failure_of_a_whole_cluster_removes_nothing(aws: Clients) -> None:
    first = up(aws)
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id])
    with refused(aws, "ExpiredToken"), pytest.raises(CloudError, match="stays"):
        up(aws)
    assert [host.id for host in AwsCluster(aws, Journal("wmt")).machines.hosts()] == [first.hosts[1].id]
    assert [found.kind for found in find_everything(aws)].count("file system") == 1


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("InsufficientInstanceCapacity", "too few g4dn.2xlarge left in us-east-1a, us-east-1b, .*try later"),
        (
            "VcpuLimitExceeded",
            r"\n  aws service-quotas request-service-quota-increase .*--quota-code L-DB2E81BA",
        ),
        ("UnauthorizedOperation", r"docs/cloud\.md has the policy"),
    ],
)
def test_a_refusal_says_what_to_do(aws: Clients, code: str, advice: str) -> None:
    with refused(aws, code), pytest.raises(CloudError, match=f"(?s){code}.*{advice}"):
        up(aws)
    assert everything_left() == []


def full_zones(*zones: str) -> Callable[..., None]:
    """Refuses machines in these zones."""

    def answer(params: dict[str, Any], **_: Any) -> None:
        subnet = params["body"]["NetworkInterface.1.SubnetId"]
        (found,) = client("ec2").describe_subnets(SubnetIds=[subnet])["Subnets"]
        if found["AvailabilityZone"] in zones:
            error = {"Code": "InsufficientInstanceCapacity", "Message": "no"}
            raise ClientError({"Error": error}, "RunInstances")

    return answer


def test_a_zone_without_machines_is_left_for_another_with_all_that_depends_on_it(aws: Clients) -> None:
    events, told = aws._client("ec2").meta.events, list[str]()
    no = full_zones("us-east-1a", "us-east-1b")
    events.register("before-call.ec2.RunInstances", no, unique_id="full")
    spec = sample_spec()
    try:
        cluster = bring_up(spec, estimate(spec), spec.ssh_from, aws, told.append)
    finally:
        events.unregister("before-call.ec2.RunInstances", unique_id="full")
    assert cluster.zone == "us-east-1c"
    assert "us-east-1b has no g4dn.2xlarge left; trying us-east-1c ..." in told
    (system,) = client("efs").describe_file_systems()["FileSystems"]
    (mount,) = client("efs").describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
    assert mount["SubnetId"] == cluster.subnet, "traffic between zones costs"


def test_a_zone_is_not_left_for_a_subnet_without_a_way_in(aws: Clients) -> None:
    vpc, subnet = make_subnet(has_gateway=True)
    ec2 = client("ec2")
    ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.2.0/24", AvailabilityZone="us-east-1b")
    assert other_subnets(aws, sample_spec(vpc=vpc), subnet) == []
    private = sample_spec(vpc=vpc, proxy_jump="bastion", ssh_from="10.9.0.5")
    assert [each.zone for each in other_subnets(aws, private, subnet)] == ["us-east-1b"]


def test_a_cluster_with_machines_stays_in_its_zone(aws: Clients) -> None:
    first = up(aws)
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id])
    with refused(aws, "InsufficientInstanceCapacity"), pytest.raises(CloudError, match="stays"):
        up(aws)
    assert Journal("wmt").require().zone == first.zone


def test_a_file_system_that_somebody_removed_is_noticed(aws: Clients) -> None:
    first = up(aws)
    (system,) = client("efs").describe_file_systems()["FileSystems"]
    mounts = client("efs").describe_mount_targets(FileSystemId=system["FileSystemId"])["MountTargets"]
    client("efs").delete_mount_target(MountTargetId=mounts[0]["MountTargetId"])
    client("efs").delete_file_system(FileSystemId=system["FileSystemId"])
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id])
    with pytest.raises(CloudError, match=f"file system {system['FileSystemId']} is gone"):
        up(aws)
    assert client("efs").describe_file_systems()["FileSystems"] == []
    assert down(aws).left == []
    assert everything_left() == []


def test_spot_machines_are_ordered_at_a_price_that_keeps_the_budget(aws: Clients) -> None:
    orders = list[str]()
    events = aws._client("ec2").meta.events
    spec = sample_spec(spot=True, budget=3, hours=100)
    bill = estimate(spec, 0.4)

    def note(params: dict[str, Any], **_: Any) -> None:
        orders.append(params["body"]["InstanceMarketOptions.SpotOptions.MaxPrice"])

    events.register("before-call.ec2.RunInstances", note, unique_id="note")
    try:
        cluster = bring_up(spec, bill, spec.ssh_from, aws, lambda line: None)
    finally:
        events.unregister("before-call.ec2.RunInstances", unique_id="note")
    hours = (cluster.deadline - cluster.created) / 3600
    others = bill.hourly - bill.machines_hour
    assert float(orders[0]) > 0.4
    assert (2 * float(orders[0]) + others) * hours == pytest.approx(3, abs=0.01)


def test_the_disk_is_the_one_that_the_image_starts_from(aws: Clients) -> None:
    up(aws)
    (image,) = client("ec2").describe_images(ImageIds=[Journal("wmt").require().image])["Images"]
    instances = [i for r in client("ec2").describe_instances()["Reservations"] for i in r["Instances"]]
    for instance in instances:
        assert [disk["DeviceName"] for disk in instance["BlockDeviceMappings"]] == [image["RootDeviceName"]]


def test_a_disk_that_is_too_small_for_the_image_is_refused_before_anything_is_made(
    aws: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "echelon.cloud.aws.image.find_root_disk", lambda clients, image: RootDisk("/dev/sda1", 75)
    )
    with pytest.raises(UserError, match=r"disk_gb = 30: the image ami-\w+ needs 75"):
        up(aws, sample_spec(disk_gb=30))
    assert everything_left() == []


def test_a_replaced_machine_keeps_its_number_and_its_address(aws: Clients) -> None:
    first = up(aws, sample_spec(spot=True))
    client("ec2").terminate_instances(InstanceIds=[first.hosts[1].id])
    machines = AwsCluster(aws, Journal("wmt")).machines
    machines.replace(first.hosts[1])
    hosts = machines.hosts()
    assert [host.number for host in hosts] == [0, 1]
    assert hosts[1].id != first.hosts[1].id
    assert hosts[1].private_address == first.hosts[1].private_address


def test_of_two_lost_machines_each_comes_back_as_itself(aws: Clients) -> None:
    first = up(aws, sample_spec(count=3, spot=True))
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id, first.hosts[2].id])
    machines = AwsCluster(aws, Journal("wmt")).machines
    for lost in (first.hosts[2], first.hosts[0]):
        machines.replace(lost)
    assert [(host.number, host.private_address) for host in machines.hosts()] == [
        (host.number, host.private_address) for host in first.hosts
    ]
    machines.replace(first.hosts[0])
    assert len(machines.find()) == 3, "what another launcher has replaced is not replaced again"


def test_a_machine_that_cannot_be_had_does_not_keep_another_from_coming_back(
    aws: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = up(aws, sample_spec(count=3, spot=True))
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id, first.hosts[2].id])
    told, reached = list[str](), list[str]()
    rented = Rented("wmt", tmp_path / "run", tmp_path / "data", told.append)

    def refuse_the_first(params: dict[str, Any], **_: Any) -> None:
        if first.hosts[0].private_address in str(params):
            error = {"Code": "InsufficientInstanceCapacity", "Message": "no"}
            raise ClientError({"Error": error}, "RunInstances")

    def unreachable(_name: str, hosts: list[str]) -> NoReturn:
        reached.extend(hosts)
        raise CloudError("nobody answers")

    monkeypatch.setattr("echelon.commands.rented_hosts._open", unreachable)
    events = rented._machines.machines._context.clients._client("ec2").meta.events
    events.register("before-parameter-build.ec2.RunInstances", refuse_the_first)
    rented._look()
    assert reached == ["wmt-2"], "the other is not there to be set up"
    assert "InsufficientInstanceCapacity" in told[1]
    assert [host.state for host in Journal("wmt").require().hosts].count("running") == 3
    assert [host.number for host in rented._find_lost()] == [0]
    assert not rented.is_ready("wmt-0")
    assert not rented.is_ready("wmt-2")


def test_a_machine_is_not_replaced_when_its_time_is_over(aws: Clients, tmp_path: Path) -> None:
    lost = up(aws, sample_spec(spot=True, hours=2)).hosts[1]
    client("ec2").terminate_instances(InstanceIds=[lost.id])
    rented = Rented("wmt", tmp_path / "run", tmp_path / "data", lambda line: None)
    assert rented._find_lost() == [lost]
    age(1.8)
    assert rented._find_lost() == [], "twelve minutes are left"
    age(0.2)
    assert rented._find_lost() == []
    machines = AwsCluster(aws, Journal("wmt")).machines
    with pytest.raises(CloudError, match="the time of wmt is over"):
        machines.replace(lost)
    assert len(machines.find()) == 1


def birth_moments(cluster: ClusterRecord) -> set[bool]:
    """Whether the machines were told to end when the cluster does."""
    answers = [
        client("ec2").describe_instance_attribute(InstanceId=host.id, Attribute="userData")
        for host in cluster.hosts
    ]
    moment = f"DEADLINE={int(cluster.deadline)} "
    return {moment in base64.b64decode(a["UserData"]["Value"]).decode() for a in answers}


def test_a_cluster_whose_time_is_over_gets_a_new_one_beside_its_files(aws: Clients) -> None:
    first = up(aws, sample_spec(hours=2))
    client("ec2").terminate_instances(InstanceIds=[first.hosts[0].id])
    old = age(3)
    files = client("efs").describe_file_systems()["FileSystems"]
    second = up(aws, sample_spec(hours=2))
    assert second.deadline - second.created == pytest.approx(2 * 3600)
    assert second.deadline > time.time() + 3600
    assert birth_moments(second) == {True}
    assert not {host.id for host in first.hosts} & {host.id for host in second.hosts}
    assert len(AwsCluster(aws, Journal("wmt")).machines.find()) == 2, (
        "one that has outlived its time is ended"
    )
    after = client("efs").describe_file_systems()["FileSystems"]
    assert [each["FileSystemId"] for each in after] == [each["FileSystemId"] for each in files]
    spent = cost_so_far(old, second.created)
    assert spent > 2 * (old.hourly - old.shared_hourly)
    assert cost_so_far(second, second.created + 3600) == pytest.approx(spent + second.hourly)
    assert up(aws, sample_spec(hours=2)) == second


def test_machines_that_are_about_to_end_are_left_to_it(aws: Clients) -> None:
    spec = sample_spec(hours=2)
    up(aws, spec)
    old, before = age(1.8), everything_left()
    with pytest.raises(UserError, match=r"terminate by themselves in \d+ minutes"):
        up(aws, spec)
    assert everything_left() == before
    assert Journal("wmt").require() == old
    client("ec2").terminate_instances(InstanceIds=[host.id for host in old.hosts])
    second = up(aws, spec)
    assert second.deadline - second.created == pytest.approx(2 * 3600)


def test_a_new_time_without_machines_has_not_begun(aws: Clients) -> None:
    hosts = up(aws).hosts
    client("ec2").terminate_instances(InstanceIds=[host.id for host in hosts])
    old = age(13)
    with refused(aws, "VcpuLimitExceeded"), pytest.raises(CloudError, match="stays"):
        up(aws)
    left = Journal("wmt").require()
    assert replace(left, parts=old.parts) == old
    with refused(aws, "VcpuLimitExceeded"), pytest.raises(CloudError, match="stays"):
        up(aws, sample_spec(ssh_from="198.51.100.9"))
    assert Journal("wmt").require().ssh_from == "198.51.100.9/32", "the rule has been changed"
    assert [found.kind for found in find_everything(aws)].count("file system") == 1


def test_each_time_has_an_order_of_its_own(aws: Clients) -> None:
    hosts = up(aws).hosts
    client("ec2").terminate_instances(InstanceIds=[host.id for host in hosts])
    events, orders = aws._client("ec2").meta.events, list[str]()

    def note(params: dict[str, Any], **_: Any) -> None:
        orders.append(params["body"]["ClientToken"])

    def crash(**_: Any) -> None:
        raise CrashError

    events.register("before-call.ec2.RunInstances", note, unique_id="note")
    events.register("after-call.ec2.RunInstances", crash, unique_id="crash")
    try:
        age(13)
        with pytest.raises(CrashError):
            up(aws)
        events.unregister("after-call.ec2.RunInstances", unique_id="crash")
        age(13)
        up(aws)
    finally:
        events.unregister("before-call.ec2.RunInstances", unique_id="note")
        events.unregister("after-call.ec2.RunInstances", unique_id="crash")
    assert len(set(orders)) == len(orders) == 2, "AWS refuses an order with the token of another"


def test_a_cluster_begun_with_another_spec_is_not_changed(aws: Clients) -> None:
    up(aws)
    with pytest.raises(UserError, match="another cluster"):
        up(aws, sample_spec(count=3))


def test_costs_stop_when_the_machines_end_but_not_those_of_the_files(aws: Clients) -> None:
    cluster = up(aws, sample_spec(hours=2, bucket=None))
    machines_hour = cluster.hourly - cluster.shared_hourly
    assert cost_so_far(cluster, cluster.created + 3600) == pytest.approx(cluster.hourly)
    late = cost_so_far(cluster, cluster.created + 10 * 3600)
    assert late == pytest.approx(2 * machines_hour + 10 * cluster.shared_hourly)
