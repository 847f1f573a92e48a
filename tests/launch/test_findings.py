"""What is found wrong with hosts, from what they said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echelon.launch.findings import (
    Finding,
    HostFacts,
    MeasuredLink,
    Needs,
    PreparedData,
    judge_host,
    judge_link,
    judge_network,
    judge_together,
    show_bytes,
)
from echelon.launch.hosts import Host
from echelon.launch.machine import Disk, Gpu
from echelon.launch.routes import Network, Route, Unreached
from echelon.launch.session import ClockOffset, offset_of
from tests.launch.machines import MACHINE, VERSIONS

DISK = Disk("/runs", 10 << 30, 500e6)
FACTS = HostFacts(MACHINE, DISK, ClockOffset(0.01, 0.001), None, None)
HOST = Host("a")
GPU = Gpu("A100", 40 << 30, "550")
NEEDS = Needs(Path("/runs/demo"), PreparedData(Path("/cache/data"), "abc"))


def judge(facts: HostFacts = FACTS, host: Host = HOST) -> list[str]:
    """Findings in words; those that stop nothing in brackets."""
    found = judge_host(host, facts, VERSIONS, NEEDS)
    return [f"{f.what}; {f.remedy}" if f.is_fatal else f"({f.what}; {f.remedy})" for f in found]


def test_nothing_is_wrong_with_a_host_that_is_fit() -> None:
    assert judge() == []


def test_every_version_that_differs_is_named() -> None:
    other = replace(VERSIONS, echelon="0.2.0", torch=None, python="3.12.1")
    assert judge(replace(FACTS, machine=replace(MACHINE, versions=other))) == [
        "Echelon 0.2.0, here 0.1.0; --install puts the same there",
        "torch missing, here 2.13.0+cpu; --install puts the same there",
        "Python 3.12.1, here 3.11.7; --install puts the same there",
    ]


def test_the_same_version_with_other_code_is_another() -> None:
    other = replace(VERSIONS, source="1" * 12)
    assert judge(replace(FACTS, machine=replace(MACHINE, versions=other))) == [
        "Echelon 0.1.0 with other code than here (111111111111, here 000000000000); --install puts the same there"
    ]


def test_builds_of_torch_and_patches_of_python_may_differ() -> None:
    other = replace(VERSIONS, torch="2.13.0+cu130", python="3.11.2")
    assert judge(replace(FACTS, machine=replace(MACHINE, versions=other))) == []


@pytest.mark.parametrize(
    ("disk", "finding"),
    [
        (
            Disk("/runs", 5 << 30, None, "Permission denied"),
            "cannot write in /runs: Permission denied; let me write there, or choose another folder with --run",
        ),
        (
            Disk("/runs", 1 << 29, 500e6),
            "537 MB free at /runs, 1.1 GB needed; make room there, or choose another folder with --run",
        ),
        (
            Disk("/runs", 5 << 30, 3e6),
            "(/runs writes only 3.0 MB/s; checkpoints will take long; --run on a faster disk is better)",
        ),
    ],
)
def test_a_disk_that_is_full_slow_or_not_writable_is_told(disk: Disk, finding: str) -> None:
    assert judge(replace(FACTS, disk=disk)) == [finding]


def test_too_little_memory_is_told() -> None:
    assert judge(replace(FACTS, machine=replace(MACHINE, free_memory_bytes=300_000_000))) == [
        "300 MB of memory free, 1.1 GB needed; end other programs there, or use fewer workers on it"
    ]


def test_a_clock_is_wrong_only_beyond_doubt() -> None:
    assert judge(replace(FACTS, clock=ClockOffset(-37.2, 0.01))) == [
        "(its clock is 37 s behind; set it by NTP: `timedatectl set-ntp true`)"
    ]
    assert judge(replace(FACTS, clock=ClockOffset(1.5, 0.8))) == []


def test_the_quickest_exchange_tells_the_time() -> None:
    assert offset_of([(0.0, 10.0, 4.0), (5.0, 13.5, 6.0), (7.0, 20.0, 9.0)]) == ClockOffset(8.0, 0.5)


def test_more_workers_than_gpus_are_refused_and_without_gpus_there_is_no_limit() -> None:
    two = replace(FACTS, machine=replace(MACHINE, gpus=(GPU, GPU)))
    assert judge(two, Host("a", 2)) == judge(two, HOST) == judge(FACTS, Host("a", 4)) == []
    assert judge(two, Host("a", 4)) == ["4 workers for 2 GPUs; ask for a:2"]


def test_data_that_are_not_there_are_told_with_the_way_to_get_them_there() -> None:
    assert judge(replace(FACTS, data_problem="manifest.json: No such file or directory")) == [
        "the recipe's data are not in /cache/data: manifest.json: No such file or directory; "
        "--sync copies them there, or keep them in a folder that all hosts share"
    ]


def test_small_limits_are_told() -> None:
    small = replace(MACHINE, max_open_files=256, free_shm_bytes=1 << 20)
    assert judge(replace(FACTS, machine=small)) == [
        "(only 256 open files are allowed; raise the limit: `ulimit -n 65536`, or in limits.conf)",
        "(1.0 MB free in /dev/shm; make room there; a container needs --ipc=host or --shm-size=1g)",
    ]


def test_one_machine_under_two_names_and_missing_gpus_show_in_comparison() -> None:
    with_gpu = replace(FACTS, machine=replace(MACHINE, gpus=(GPU,)))
    other = replace(FACTS, machine=replace(MACHINE, identity="c"))
    found = judge_together({"a": with_gpu, "b": with_gpu, "c": other})
    assert {name: [finding.what for finding in findings] for name, findings in found.items()} == {
        "b": ["is the same machine as a"],
        "c": ["0 GPUs, another host has 1"],
    }


def test_hosts_that_cannot_meet_are_told_at_the_host_that_tried() -> None:
    route = Route("eth0", "10.0.0.1")
    network = Network({"a": route}, (Unreached("b", "a", route, "no answer"),))
    found = judge_network(network, ["a", "b"], Needs())
    assert [finding.what for finding in found["b"]] == [
        "no network interface to others that is up and has an address",
        "cannot reach a at 10.0.0.1 (eth0): no answer",
    ]
    assert "a" not in found
    assert judge_network(Network({}, ()), ["a"], Needs(interface="ib0"))["a"] == [
        Finding("no network interface ib0 that is up and has an address", "name another with --interface")
    ]


def test_a_slow_network_is_worth_a_word() -> None:
    assert judge_link(None) == judge_link(MeasuredLink(118e6, 0.001)) == []
    assert [finding.what for finding in judge_link(MeasuredLink(1.2e6, 0.1))] == [
        "the hosts exchange only 1.2 MB/s"
    ]


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (99_600, "100 kB"),
        (999_600, "1.0 MB"),
        (5.4e12, "5.4 TB"),
    ],
)
def test_bytes_are_shown_in_few_digits(count: float, shown: str) -> None:
    assert show_bytes(count) == shown
