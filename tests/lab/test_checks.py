"""Checks of, and copies to, real hosts of the lab: each with its own network, disk and sshd."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echelon.errors import RemoteError
from echelon.lab.lab import Lab
from echelon.launch.ssh import Remote
from echelon.launch.sync import sync_folder, sync_hosts

pytestmark = pytest.mark.slow

Echelon = Callable[..., subprocess.CompletedProcess[str]]
GIGABIT = 125e6
NOISE = """
ip link add docker0 type veth peer name docker1
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up && ip link set docker1 up
"""
"""A card that is up and has the same address on every host, as Docker's bridge has."""


@pytest.fixture
def doctor(lab: Lab, echelon: Echelon) -> Callable[..., dict[str, Any]]:
    def run(folder: Path, *arguments: str, status: int = 0) -> dict[str, Any]:
        hosts = ",".join(lab.hosts)
        result = echelon(
            *("doctor", "--json", "--hosts", hosts, "--ssh-config", lab.ssh_config, "--run", folder / "run"),
            *arguments,
            status=status,
        )
        return {report["host"]["name"]: report for report in json.loads(result.stdout)["hosts"]}

    return run


@pytest.fixture
def remotes(lab: Lab) -> Iterator[dict[str, Remote]]:
    found = {host: Remote(host, lab.ssh_config) for host in lab.hosts}
    yield found
    for remote in found.values():
        remote.close()


def test_hosts_with_a_bridge_that_leads_nowhere_meet_on_the_right_card_at_the_lines_rate(
    lab: Lab, doctor: Callable[..., dict[str, Any]], remotes: dict[str, Remote]
) -> None:
    for remote in remotes.values():
        assert remote.run(["sh", "-c", NOISE], timeout_s=30).status == 0
    reports = doctor(lab.shared)
    addresses = {report["route"]["address"] for report in reports.values()}
    assert len(addresses) == len(lab.hosts)
    for report in reports.values():
        assert report["fit"], report["findings"]
        assert report["route"]["interface"] == "eth0"
        assert report["facts"]["shares_run_folder"] is True
        assert report["findings"] == []
        assert GIGABIT / 20 < report["link"]["bytes_per_s"] < GIGABIT * 1.1


def test_a_host_that_is_cut_off_is_told_and_the_others_are_looked_at_all_the_same(
    lab: Lab, doctor: Callable[..., dict[str, Any]]
) -> None:
    *others, last = lab.hosts
    lab.cut(last)
    try:
        reports = doctor(lab.disk, status=1)
    finally:
        lab.heal(last)
    assert not reports[last]["fit"]
    assert "the host cannot be reached over the network" in reports[last]["findings"][0]["what"]
    for host in others:
        assert reports[host]["fit"]
        assert reports[host]["facts"]["shares_run_folder"] is False
    assert all(report["fit"] for report in doctor(lab.disk).values())


def test_an_interface_that_is_not_there_is_told_for_every_host(
    lab: Lab, doctor: Callable[..., dict[str, Any]]
) -> None:
    reports = doctor(lab.shared, "--interface", "eth7", status=1)
    assert [[finding["what"] for finding in report["findings"]] for report in reports.values()] == [
        ["no network interface eth7 that is up and has an address"]
    ] * len(lab.hosts)


def test_data_are_copied_to_every_hosts_own_disk_and_the_rest_after_a_cut(
    lab: Lab, remotes: dict[str, Remote], tmp_path: Path
) -> None:
    data = random.Random(1).randbytes(60_000_000)
    (tmp_path / "data.tokens").write_bytes(data)
    target = lab.disk / "prepared"
    first, *others = remotes.values()

    def cut_halfway(host: str, sent: int, total: int) -> None:
        if sent * 2 > total:
            lab.cut(host)

    with pytest.raises(RemoteError) as caught:
        sync_folder(first, tmp_path, target, progress=cut_halfway)
    assert caught.value.reason in ("connection lost", "timed out")
    lab.heal(first.host)
    results = sync_hosts([first, *others], tmp_path, target)
    sent = {host: result for host, result in results.items() if isinstance(result, int)}
    assert sent[first.host] < len(data)
    assert [sent[remote.host] for remote in others] == [len(data)] * len(others)
    for host in lab.hosts:
        assert (lab.shared.parent / "disks" / host / "prepared" / "data.tokens").read_bytes() == data
