"""Hosts as people and sites write them: the command line, hostfiles, and what AWS prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echelon.errors import HostsError
from echelon.launch.hosts import Host, load_hosts, parse_hosts, read_aws_instances, read_hostfile


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a", [Host("a")]),
        ("a:2,b:3", [Host("a", 2), Host("b", 3)]),
        (" a:2 , b ", [Host("a", 2), Host("b")]),
        ("a,a,b", [Host("a", 2), Host("b")]),
        ("a:*", [Host("a")]),
        ("me@a.example.org:2", [Host("me@a.example.org", 2)]),
        ("10.0.0.1:4,10.0.0.2:4", [Host("10.0.0.1", 4), Host("10.0.0.2", 4)]),
        ("[2001:db8::1]:2,me@[fe80::1%eth0]", [Host("2001:db8::1", 2), Host("me@fe80::1%eth0")]),
    ],
)
def test_hosts_are_read_in_the_syntax_of_mpirun(text: str, hosts: list[Host]) -> None:
    assert parse_hosts(text) == hosts


def test_a_host_is_written_as_it_is_read() -> None:
    text = "a:2,me@b,[2001:db8::1]:3"
    assert ",".join(map(str, parse_hosts(text))) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "name is missing"),
        ("a,,b", "name is missing"),
        ("a:0", "'a:0': the number of workers is '0'; it must be a whole number from 1"),
        ("a:two", "the number of workers is 'two'"),
        ("a:2,b:1,a:1", "a is named 2 times ('a:2' and 'a:1'); name it once"),
        ("2001:db8::1", "put an IPv6 address into brackets"),
        ("-oProxyCommand=reboot", "is not a host's name"),
        ("$(reboot)", "is not a host's name"),
        ("a b", "is not a host's name"),
    ],
)
def test_hosts_that_cannot_be_meant_are_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(HostsError) as caught:
        parse_hosts(text)
    assert words in str(caught.value)


def test_all_problems_of_a_list_of_hosts_come_at_once() -> None:
    with pytest.raises(HostsError, match=r"has 2 problems:\n.*a:0.*\n.*b c"):
        parse_hosts("a:0,b c,d:2")


HOSTFILE = """\
# the cluster
a slots=2
me@b  slots = 4 max_slots=8   # Open MPI
c:3

d
e
e
[2001:db8::1] slots=1
"""


def test_a_hostfile_may_be_that_of_open_mpi_deepspeed_or_mpich(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(HOSTFILE)
    assert read_hostfile(path) == [
        Host("a", 2),
        Host("me@b", 4),
        Host("c", 3),
        Host("d"),
        Host("e", 2),
        Host("2001:db8::1", 1),
    ]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a slots=x", "line 2: 'slots=x': the number of workers is 'x'"),
        ("a cores=4", "line 2: 'cores=4' is not understood"),
        ("a 4", "line 2: '4' is not understood"),
        ("a slots=2 slots=3", "line 2: slots is given twice"),
        ("a:2 slots=2", "line 2: 'a:2' and slots=2 both give a number"),
        ("a slots=4 max_slots=2", "line 2: max_slots=2 needs slots= up to it"),
        ("a max_slots=2", "line 2: max_slots=2 needs slots= up to it"),
        ("first slots=2", "first is named 2 times (line 1 and line 2)"),
    ],
)
def test_a_bad_line_of_a_hostfile_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"first slots=1\n{line}\n")
    with pytest.raises(HostsError) as caught:
        read_hostfile(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


def instance(number: int, state: str = "running", **values: str) -> dict[str, Any]:
    return {
        "InstanceId": f"i-{number}",
        "State": {"Code": 16, "Name": state},
        "PrivateIpAddress": f"10.0.0.{number}",
        "PrivateDnsName": f"ip-10-0-0-{number}.ec2.internal",
        "PublicDnsName": f"ec2-198-51-100-{number}.compute.example",
        "PublicIpAddress": f"198.51.100.{number}",
        **values,
    }


def write_reservations(path: Path, *instances: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"Reservations": [{"Instances": [one]} for one in instances]}))
    return path


def test_running_instances_of_aws_become_hosts(tmp_path: Path) -> None:
    path = write_reservations(
        tmp_path / "i", instance(1), instance(2, "stopped"), instance(3, PublicDnsName="")
    )
    assert read_aws_instances(path) == [Host("10.0.0.1"), Host("10.0.0.3")]
    assert read_aws_instances(path, "public") == [
        Host("ec2-198-51-100-1.compute.example"),
        Host("198.51.100.3"),
    ]


def test_instances_that_a_query_has_flattened_are_found(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_text(json.dumps([[instance(1)], instance(2)]))
    assert read_aws_instances(path) == [Host("10.0.0.1"), Host("10.0.0.2")]


def test_instances_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    path = write_reservations(tmp_path / "i", instance(1, "stopped"), instance(2, "pending"))
    with pytest.raises(HostsError, match=r"no running instance \(pending, stopped\)"):
        read_aws_instances(path)
    without = instance(1, PublicDnsName="", PublicIpAddress="")
    with pytest.raises(HostsError, match="i-1 has no public address"):
        read_aws_instances(write_reservations(path, without), "public")
    path.write_text("[" * 100_000)
    with pytest.raises(HostsError, match="is not JSON"):
        read_aws_instances(path)


def test_a_text_a_hostfile_and_a_list_of_instances_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hostfile").write_text("a slots=2\n")
    write_reservations(tmp_path / "instances", instance(1))
    assert load_hosts("a:2,b") == [Host("a", 2), Host("b")]
    assert load_hosts("hostfile") == load_hosts(tmp_path / "hostfile") == [Host("a", 2)]
    assert load_hosts("instances") == [Host("10.0.0.1")]
    assert load_hosts("instances", "public") == [Host("ec2-198-51-100-1.compute.example")]


@pytest.mark.parametrize("source", ["folder/hosts", "instances.json", Path("a")])
def test_a_file_that_is_not_there_is_said_to_be_missing(source: str | Path) -> None:
    with pytest.raises(HostsError, match="No such file"):
        load_hosts(source)
