"""`doctor`: what is said about this machine and the hosts, and the exit status that goes with it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from echelon.commands.doctor import TOOLS, Diagnosis, Here, judge_here, look_here
from echelon.commands.readiness import format_diagnosis
from echelon.launch.check import HostReport
from echelon.launch.findings import Finding, HostFacts, MeasuredLink, Needs
from echelon.launch.hosts import Host
from echelon.launch.machine import Disk, Gpu, NetworkInterface
from echelon.launch.routes import Route
from echelon.launch.session import ClockOffset
from tests.launch.machines import MACHINE, VERSIONS

Echelon = Callable[..., subprocess.CompletedProcess[str]]
GPU = Gpu("A100", 40 << 30, "550.54")
ETHERNET = NetworkInterface("eth0", ("10.0.0.1",), ("10.0.0.0/24",), 1000, False)
REQUIREMENTS = [Requirement("numpy>=2.0"), Requirement("torch>=2.12,<2.16")]
HERE = Here(
    machine=replace(MACHINE, interfaces=(ETHERNET,)),
    disk=Disk("/runs", 80 * 10**9, 450e6),
    tools=dict.fromkeys(TOOLS) | {"ssh": "OpenSSH_9.2p1", "c++": "c++ 12.2"},
    lab_problem="the lab needs root, to make network namespaces; run it with sudo",
)
FACTS = HostFacts(
    replace(MACHINE, gpus=(GPU, GPU)), Disk("/runs", 5 * 10**9, 90e6), ClockOffset(0.0123, 0.001), None, True
)
READY = HostReport(
    Host("a", 2), facts=FACTS, route=Route("eth0", "10.0.0.1"), link=MeasuredLink(117e6, 0.0004)
)
LOST = HostReport(Host("b"), findings=(Finding("the host does not answer", "check that it is up"),))


def judge(here: Here) -> list[str]:
    return [finding.what for finding in judge_here(here, Needs(), REQUIREMENTS)]


def test_a_machine_that_has_all_it_needs_is_fit() -> None:
    assert judge(HERE) == []
    assert Diagnosis(HERE, [], [READY]).is_fit


def test_torch_must_be_the_one_that_echelon_needs_and_serve_the_gpus() -> None:
    other, none = replace(VERSIONS, torch="2.11.1+cpu"), replace(VERSIONS, torch=None)
    assert judge(replace(HERE, machine=replace(MACHINE, versions=other))) == [
        "torch 2.11.1+cpu, Echelon needs torch<2.16,>=2.12"
    ]
    assert judge(replace(HERE, machine=replace(MACHINE, versions=none))) == [
        "torch is missing, Echelon needs torch<2.16,>=2.12"
    ]
    for fitting in ("2.12.1", "2.14.0a0+nv26.9", "2.15.0+cu132"):
        versions = replace(VERSIONS, torch=fitting)
        assert judge(replace(HERE, machine=replace(MACHINE, versions=versions))) == []
    assert judge(replace(HERE, machine=replace(MACHINE, gpus=(GPU,)))) == [
        "torch 2.13.0+cpu cannot use this machine's GPUs"
    ]


def test_missing_tools_stop_nothing_that_does_without_them() -> None:
    findings = judge_here(replace(HERE, tools=dict.fromkeys(TOOLS)), Needs(), REQUIREMENTS)
    assert [finding.what for finding in findings] == ["there is no ssh client", "there is no C++ compiler"]
    assert Diagnosis(HERE, findings, []).is_fit


GOLDEN = """\
this machine: a
  Echelon 0.1.0 (000000000000), torch 2.13.0+cpu, Python 3.11.7 (/usr/bin/python3)
  cores: 8
  memory: 17.2 GB, 8.6 GB free; /dev/shm 4.3 GB free
  GPUs: none
  disk: /runs: 80.0 GB free, 450 MB/s
  open files: 65,536
  network: eth0 10.0.0.1
  ssh: OpenSSH_9.2p1
  c++: c++ 12.2
  lab: the lab needs root, to make network namespaces; run it with sudo
! small; enlarge it

 HOST   STATE       CORES   GPUS   MEMORY        DISK                     CLOCK    NETWORK         RUN FOLDER
 ────────────────────────────────────────────────────────────────────────────────────────────────────────────
 a:2    ready       8       2      8.6 GB free   5.0 GB free, 90.0 MB/s   +12 ms   eth0 10.0.0.1   shared
 b      1 problem

✗ b: the host does not answer; check that it is up
network: 2 hosts exchange 117 MB/s each way, a single number in 0.4 ms
something needs doing: see the lines marked with ✗"""


def test_everything_is_said_in_one_place() -> None:
    diagnosis = Diagnosis(HERE, [Finding("small", "enlarge it", is_fatal=False)], [READY, LOST])
    assert format_diagnosis(diagnosis) == GOLDEN


def test_doctor_looks_at_this_machine(echelon: Echelon, tmp_path: Path) -> None:
    result = echelon("doctor", "--run", tmp_path / "runs" / "new", "--json")
    document = json.loads(result.stdout)
    assert document["fit"] is True
    assert document["hosts"] == []
    assert document["disk"]["folder"] == str(tmp_path)
    assert document["tools"].keys() == TOOLS.keys()
    assert not (tmp_path / "runs").exists()


def test_doctor_fails_where_something_needs_doing(echelon: Echelon, tmp_path: Path) -> None:
    result = echelon("doctor", "--hosts", "no-such-host.invalid", "--run", tmp_path, status=1)
    assert "✗ no-such-host.invalid: there is no host of this name" in result.stdout
    assert "something needs doing" in result.stdout


def test_hosts_given_twice_are_a_mistake(echelon: Echelon, tmp_path: Path) -> None:
    assert "use one of them" in echelon("doctor", "--hosts", "a", "--hostfile", "b", status=2).stderr


def test_a_tool_that_is_missing_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\necho OpenSSH_1.0 >&2\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    here = look_here(tmp_path)
    assert here.tools["ssh"] == "OpenSSH_1.0"
    assert here.tools["docker"] is None
