"""What cannot work is refused before the question; private subnets and laptops that have moved are handled."""

from __future__ import annotations

import getpass
import io
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from echelon.cloud.aws.calls import Clients
from echelon.cloud.aws.location import find_site
from echelon.cloud.inventory import Login, render_ssh_config
from echelon.cloud.journal import HostRecord, Journal
from echelon.commands import cloud
from echelon.errors import UserError
from tests.cloud.clusters import down, sample_spec, up
from tests.cloud.server import client, everything_left
from tests.sshd import Sshd

TYPE = "g4dn.2xlarge"


def default_vpc() -> str:
    vpcs = client("ec2").describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    return str(vpcs[0]["VpcId"])


def zones_with_machines() -> set[str]:
    offers = client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [TYPE]}]
    )
    return {str(offer["Location"]) for offer in offers["InstanceTypeOfferings"]}


def make_subnet(vpc: str = "", *, has_gateway: bool = False) -> tuple[str, str]:
    """A VPC and a subnet in it, private unless it has a gateway."""
    ec2 = client("ec2")
    vpc = vpc or str(ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"])
    zone = min(zones_with_machines())
    made = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone=zone)["Subnet"]
    if has_gateway:
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
        table = ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
        ec2.associate_route_table(RouteTableId=table, SubnetId=made["SubnetId"])
    return vpc, str(made["SubnetId"])


@pytest.fixture
def run_up(aws: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`cloud up`, and what it told."""
    monkeypatch.setattr(cloud, "make_ready", lambda cluster, console: None)
    monkeypatch.setattr(cloud, "Clients", lambda region: aws)  # boto3 takes half a second to make new ones

    def run(answer: bool | None = True, **settings: Any) -> str:
        document = {"name": "wmt", "type": TYPE, "ssh_from": "203.0.113.7", **settings}
        file = tmp_path / "cluster.toml"
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in document.items()))
        console = Console(record=True, file=io.StringIO(), width=300)
        cloud.up(file, lambda question: pytest.fail("asked") if answer is None else answer, console)
        return console.export_text()

    return run


def test_a_subnet_of_another_network_is_refused_before_the_question(run_up: Any) -> None:
    vpc, subnet = make_subnet()
    with pytest.raises(UserError, match=f"{subnet} is in {vpc}, not in vpc = {default_vpc()}"):
        run_up(None, vpc=default_vpc(), subnet=subnet)
    with pytest.raises(UserError, match="has no subnet-12345678"):
        run_up(None, vpc=default_vpc(), subnet="subnet-12345678")
    assert everything_left() == []


def test_a_subnet_in_a_zone_without_the_machine_is_refused_before_the_question(run_up: Any) -> None:
    subnets = client("ec2").describe_subnets()["Subnets"]
    wrong = [each for each in subnets if each["AvailabilityZone"] not in zones_with_machines()]
    assert wrong, "moto has a zone without these machines"
    with pytest.raises(UserError, match=f"which has no {TYPE}; these zones have"):
        run_up(None, vpc=default_vpc(), subnet=wrong[0]["SubnetId"])


def test_a_key_that_is_not_there_is_refused_before_the_question(run_up: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file"):
        run_up(None, key_name="mine", key_file=str(tmp_path / "absent"))
    (tmp_path / "key").write_text("key")
    with pytest.raises(UserError, match="has no key pair mine"):
        run_up(None, key_name="mine", key_file=str(tmp_path / "key"))
    client("ec2").create_key_pair(KeyName="mine")
    with pytest.raises(UserError, match="nothing was made"):
        run_up(False, key_name="mine", key_file=str(tmp_path / "key"))


def test_a_cluster_of_another_name_or_spec_is_refused_before_the_question(run_up: Any) -> None:
    run_up()
    with pytest.raises(UserError, match="another cluster"):
        run_up(None, count=2)
    Journal("wmt").forget()
    with pytest.raises(UserError, match="not written down here"):
        run_up(None)


def test_a_private_subnet_needs_a_way_in(aws: Clients) -> None:
    vpc, subnet = make_subnet()
    with pytest.raises(UserError, match=r"private subnet.*proxy_jump =, or set ssm = true"):
        find_site(aws, sample_spec(vpc=vpc, subnet=subnet))
    with pytest.raises(UserError, match="private subnet"):
        find_site(aws, sample_spec(vpc=vpc))
    private = sample_spec(vpc=vpc, proxy_jump="bastion", ssh_from="10.9.0.5")
    assert find_site(aws, private).subnet == subnet
    public, open_ = make_subnet(has_gateway=True)
    assert find_site(aws, sample_spec(vpc=public, subnet=open_)).subnet == open_


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"ssm": True, "proxy_jump": "bastion"}, "choose one"),
        ({"ssm": True, "ssh_from": "10.0.0.1"}, "no effect with ssm"),
        ({"proxy_jump": "bastion", "ssh_from": "auto"}, "needs ssh_from"),
        ({"proxy_jump": "-oProxyCommand=x", "ssh_from": "10.0.0.1"}, "proxy_jump"),
        ({"proxy_jump": "a b", "ssh_from": "10.0.0.1"}, "proxy_jump"),
        ({"boundary": "arn:aws:iam::123456789012:policy/x", "bucket": None}, "only bucket and ssm"),
        ({"boundary": "mine"}, "boundary"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        sample_spec(**{"ssh_from": "203.0.113.7", **settings})


@pytest.mark.parametrize(
    "mount",
    [
        *(
            "/../etc",
            "/shared/../../etc",
            "/./etc",
            "//etc",
            "/etc/x",
            "/var/lib",
            "/",
            "shared",
            "/a b",
            "/a\n",
        ),
        *("/home", "/home/ubuntu"),
    ],
)
def test_nothing_is_mounted_over_the_system(mount: str) -> None:
    with pytest.raises(UserError, match="mount"):
        sample_spec(mount=mount)
    assert sample_spec(mount="/home/ubuntu/shared").mount == "/home/ubuntu/shared"


def open_ports() -> list[tuple[int | None, list[str]]]:
    groups = client("ec2").describe_security_groups(
        Filters=[{"Name": "tag:echelon:part", "Values": ["hosts"]}]
    )
    return [
        (rule.get("FromPort"), [entry["CidrIp"] for entry in rule["IpRanges"]])
        for group in groups["SecurityGroups"]
        for rule in group["IpPermissions"]
        if rule["IpProtocol"] == "tcp"
    ]


def test_machines_behind_a_bastion_have_no_public_address(aws: Clients) -> None:
    vpc, subnet = make_subnet()
    spec = sample_spec(vpc=vpc, subnet=subnet, proxy_jump="me@bastion.example.org:2222", ssh_from="10.9.0.5")
    cluster = up(aws, spec)
    assert [host.public_address for host in cluster.hosts] == ["", ""]
    config = Journal("wmt").ssh_config.read_text()
    assert f"Host wmt-0\n  HostName {cluster.hosts[0].private_address}\n" in config
    assert "  ProxyCommand ssh -o BatchMode=yes -p 2222 -W [%h]:%p -- me@bastion.example.org\n" in config
    assert open_ports() == [(22, ["10.9.0.5/32"])]
    assert down(aws).left == []
    assert everything_left() == []


def test_machines_reached_through_ssm_open_no_port(aws: Clients) -> None:
    vpc, subnet = make_subnet()
    boundary = "arn:aws:iam::123456789012:policy/echelon-boundary"
    spec = sample_spec(vpc=vpc, subnet=subnet, ssm=True, ssh_from="auto", bucket=None, boundary=boundary)
    cluster = up(aws, spec)
    assert open_ports() == []
    iam, name = client("iam"), "echelon-wmt.us-east-1"
    role = iam.get_role(RoleName=name)["Role"]
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == boundary
    (policy,) = iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]
    assert policy["PolicyArn"] == "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
    assert f"Host wmt-1\n  HostName {cluster.hosts[1].id}\n" in Journal("wmt").ssh_config.read_text()
    assert down(aws).left == []
    assert everything_left() == []


def test_ssm_needs_its_tools_before_the_question(run_up: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: "/bin/aws" if tool == "aws" else None)
    with pytest.raises(UserError, match="session-manager-plugin"):
        run_up(None, ssm=True, ssh_from="auto")


SSM = """\
Host wmt-0
  HostName i-0a1b2c
Host *
  User ubuntu
  IdentityFile "/home/me/key"
  IdentitiesOnly yes
  UserKnownHostsFile "/home/me/known"
  HostKeyAlias wmt
  StrictHostKeyChecking yes
  ForwardAgent no
  ProxyCommand aws ssm start-session --target %h --document-name AWS-StartSSHSession --parameters portNumber=%p \
--region eu-west-1
"""


def test_the_session_managers_way_in() -> None:
    login = Login("wmt", "ubuntu", "/home/me/key", Path("/home/me/known"), ssm_region="eu-west-1")
    assert render_ssh_config(login, [HostRecord(0, "i-0a1b2c", "10.0.0.5", "")]) == SSM


def test_a_bastion_is_gone_through_with_the_users_own_configuration(tmp_path: Path) -> None:
    """A real sshd is bastion and host at once; each wants its own key and has its own entry in known_hosts."""
    server = Sshd(tmp_path, {"LANG": "C"})
    try:
        # As ~/.ssh/config of the user, which ssh finds by itself; for a test it has to be named.
        bin_ = tmp_path / "bin"
        bin_.mkdir()
        ssh = shutil.which("ssh")
        (bin_ / "ssh").write_text(
            f'#!/bin/sh\necho went >> {tmp_path}/jumps\nexec {ssh} -F {server.config} "$@"\n'
        )
        (bin_ / "ssh").chmod(0o755)
        known, config = tmp_path / "cluster_known_hosts", tmp_path / "cluster_config"
        known.write_text(f"wmt {(tmp_path / 'host_key.pub').read_text()}")
        login = Login(
            "wmt", getpass.getuser(), str(tmp_path / "user_key"), known, proxy_jump=f"alpha:{server.port}"
        )
        text = render_ssh_config(login, [HostRecord(0, "i-1", "127.0.0.1", "")])
        config.write_text(f"Port {server.port}\n{text}")
        done = subprocess.run(
            [str(ssh), "-F", str(config), "wmt-0", "echo", "arrived"],
            env={**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "arrived\n", done.stderr
        assert (tmp_path / "jumps").read_text() == "went\n"
    finally:
        server.stop()


@pytest.mark.parametrize("jump", ["bastion", "me@10.0.0.1:22", "b-1.example.org"])
def test_a_proxy_command_is_made_of_plain_words(jump: str) -> None:
    login = Login("wmt", "ubuntu", "/key", Path("/known"), proxy_jump=jump)
    line = render_ssh_config(login, []).splitlines()[-1]
    assert shlex.split(line)[-2:] == ["--", jump.partition(":")[0]]


def test_a_moved_laptop_is_let_in_again_and_its_old_address_is_not(
    run_up: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(["203.0.113.7", "198.51.100.9", "198.51.100.9"])
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO(next(seen).encode()))
    assert "SSH is open to 203.0.113.7/32 only\n" in run_up(ssh_from="auto")
    hosts = Journal("wmt").require().hosts
    told = run_up(ssh_from="auto")
    assert "SSH is open to 198.51.100.9/32 only, and no longer to 203.0.113.7/32\n" in told
    assert open_ports() == [(22, ["198.51.100.9/32"])]
    assert Journal("wmt").require().hosts == hosts
    with pytest.raises(UserError, match=r"is of IPv6.*name your IPv4 address"):
        run_up(None, ssh_from="2001:db8::/48")
    run_up(ssh_from="auto")
    assert open_ports() == [(22, ["198.51.100.9/32"])]

    def fail(*_: Any, **__: Any) -> None:
        raise OSError

    monkeypatch.setattr("urllib.request.urlopen", fail)
    assert "SSH is open to 198.51.100.9/32 only\n" in run_up(ssh_from="auto"), (
        "nobody says: it stays as it is"
    )


def test_a_refused_question_leaves_the_address_as_it_is(run_up: Any) -> None:
    run_up()
    with pytest.raises(UserError, match="nothing was made"):
        run_up(False, ssh_from="198.51.100.9")
    assert open_ports() == [(22, ["203.0.113.7/32"])]
