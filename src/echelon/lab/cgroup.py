"""A host's share of the CPUs, by a control group of its own, which also knows all of the host's processes."""

from __future__ import annotations

import errno
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from echelon.errors import LabError, UserError
from echelon.lab.processes import send

_PERIOD_US = 20_000
"""Shorter than the kernel's 100 ms, so that a host that has used up its share does not pause for long."""
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class CpuController:
    """Where control groups with CPU quotas are made."""

    root: Path
    version: Literal[1, 2]

    def folder(self, group: str) -> Path:
        return self.root / group

    def process_file(self, group: str) -> Path:
        """Writing a process number into it moves the process into the group."""
        return self.folder(group) / "cgroup.procs"

    def make(self, group: str, cpus: float) -> None:
        """Make a group that gets `cpus` CPUs' worth of time; UserError if the system does not allow it."""
        try:
            if self.version == 2:
                self._pass_on_cpu()
            self.folder(group).mkdir()
            for name, value in render_quota(self.version, cpus).items():
                (self.folder(group) / name).write_text(value)
        except OSError as error:
            raise UserError(
                f"{self.folder(group)}: a control group for CPU time cannot be made here: {error.strerror}; "
                "in a container, start it with --privileged"
            ) from None

    def _pass_on_cpu(self) -> None:
        control = self.root / "cgroup.subtree_control"
        if "cpu" not in control.read_text().split():
            control.write_text("+cpu")

    def processes(self, group: str) -> list[int]:
        """The numbers of the group's processes; none if there is no such group."""
        try:
            return [int(number) for number in self.process_file(group).read_text().split()]
        except FileNotFoundError:
            return []

    def remove(self, group: str) -> None:
        """End all processes of a group, and the group; a process that is just being started in it does not start."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.folder(group).exists():
            send(signal.SIGKILL, self.processes(group))
            try:
                self.folder(group).rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise LabError(f"{self.folder(group)}: cannot be removed: {error.strerror}") from None
                time.sleep(0.005)


def render_quota(version: Literal[1, 2], cpus: float) -> dict[str, str]:
    """The files of a control group that limit its CPU time, and what they hold."""
    quota_us = round(cpus * _PERIOD_US)
    if version == 2:
        return {"cpu.max": f"{quota_us} {_PERIOD_US}"}
    return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}


def find_cpu_controller(mounts: Path = Path("/proc/self/mounts")) -> CpuController:
    """The system's controller of CPU time, version 1 or 2; UserError if it has none."""
    for line in mounts.read_text().splitlines():
        _, point, kind, options = line.split()[:4]
        root = Path(point)
        if kind == "cgroup" and "cpu" in options.split(","):
            return CpuController(root, 1)
        if kind == "cgroup2" and "cpu" in (root / "cgroup.controllers").read_text().split():
            return CpuController(root, 2)
    raise UserError(
        "the lab needs control groups for CPU time, and no cgroup file system with the cpu controller is mounted; "
        "on most systems `mount -t cgroup2 none /sys/fs/cgroup` mounts it"
    )
