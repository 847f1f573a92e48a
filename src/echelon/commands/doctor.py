"""`doctor`: checks whether this machine and the hosts are ready."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from echelon.commands.ray_diagnosis import check_ray
from echelon.errors import UserError
from echelon.lab.cgroup import find_cpu_controller
from echelon.lab.requirements import check_machine
from echelon.launch.check import HostReport, check_hosts
from echelon.launch.findings import Finding, Needs, judge_disk, judge_limits, judge_memory
from echelon.launch.hosts import Host
from echelon.launch.machine import Disk, Machine, describe_machine, measure_disk
from echelon.launch.pins import find_requirements
from echelon.launch.ssh import Remote

TOOLS: dict[str, tuple[str, ...]] = {
    "ssh": ("ssh", "-V"),
    "c++": ("c++", "--version"),
    "docker": ("docker", "--version"),
    "mpirun": ("mpirun", "--version"),
    "sbatch": ("sbatch", "--version"),
    "kubectl": ("kubectl", "version", "--client"),
}
"""Programs to look for on this machine, and how to ask for their version."""


@dataclass(frozen=True)
class Here:
    """This machine."""

    machine: Machine
    disk: Disk
    tools: Mapping[str, str | None]
    """The version that each reports; None if it is missing."""
    lab_problem: str | None
    """Why there can be no lab here; None if there can."""


@dataclass(frozen=True)
class Diagnosis:
    """The findings of `doctor`."""

    here: Here
    findings: Sequence[Finding]
    """About this machine."""
    hosts: Sequence[HostReport]

    @property
    def is_fit(self) -> bool:
        """Whether this machine and all hosts are ready."""
        return not any(finding.is_fatal for finding in self.findings) and all(
            host.is_fit for host in self.hosts
        )

    def to_json(self) -> dict[str, Any]:
        """What `doctor --json` prints."""
        return {
            "fit": self.is_fit,
            **asdict(self.here),
            "findings": [asdict(finding) for finding in self.findings],
            "hosts": [{"fit": host.is_fit, **asdict(host)} for host in self.hosts],
        }


def diagnose_with_ray(address: str | None, needs: Needs) -> Diagnosis:
    """Check this machine, and the Ray cluster that is there or at `address`."""
    diagnosis = diagnose([], None, needs)
    findings, reports = check_ray(address, needs)
    return replace(diagnosis, findings=[*diagnosis.findings, *findings], hosts=reports)


def diagnose(hosts: Sequence[Host], ssh_config: Path | None, needs: Needs) -> Diagnosis:
    """Check this machine and, in parallel, the hosts."""
    here = look_here(needs.run_folder or Path.cwd())
    with ExitStack() as stack:
        remotes = {host.name: stack.enter_context(Remote(host.name, ssh_config)) for host in hosts}
        reports = check_hosts(hosts, remotes, needs) if hosts else []
    return Diagnosis(here, judge_here(here, needs, find_requirements()), reports)


def look_here(folder: Path) -> Here:
    """This machine, with the disk that holds runs."""
    tools = {name: _version_of(command) for name, command in TOOLS.items()}
    return Here(describe_machine(), measure_disk(folder.absolute()), tools, _find_lab_problem())


def _version_of(command: Sequence[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "does not answer"
    lines = (result.stdout or result.stderr).splitlines()
    return lines[0].strip() if lines and result.returncode == 0 else "does not answer"


def _find_lab_problem() -> str | None:
    try:
        check_machine()
        find_cpu_controller()
    except UserError as error:
        return str(error)
    return None


def judge_here(here: Here, needs: Needs, requirements: Sequence[Requirement]) -> list[Finding]:
    """What is wrong with this machine."""
    machine, findings = here.machine, list[Finding]()
    torch, wanted = machine.versions.torch, next(need for need in requirements if need.name == "torch")
    if torch is None or not wanted.specifier.contains(torch, prereleases=True):
        findings.append(
            Finding(f"torch {torch or 'is missing'}, Echelon needs {wanted}", f"`pip install '{wanted}'`")
        )
    elif machine.gpus and torch.endswith("+cpu"):
        findings.append(
            Finding(
                f"torch {torch} cannot use this machine's GPUs", "install the build for CUDA, see pytorch.org"
            )
        )
    findings += judge_memory(machine, needs.memory_bytes)
    findings += judge_disk(here.disk, machine.user, needs.disk_bytes)
    findings += judge_limits(machine)
    if here.tools["ssh"] is None:
        findings.append(
            Finding("there is no ssh client", "install OpenSSH's; --hosts needs it", is_fatal=False)
        )
    if here.tools["c++"] is None:
        findings.append(
            Finding("there is no C++ compiler", "install g++; torch.compile needs it", is_fatal=False)
        )
    return findings
