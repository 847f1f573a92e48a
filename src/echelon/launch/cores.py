"""How many cores this process may use."""

from __future__ import annotations

import math
import os

from echelon.launch.control_groups import Read, groups_of, read_text

_FILES = (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"])
"""Files with the quota and its period in microseconds, of cgroup v2 and v1."""


def available_cores() -> int:
    """Cores this process may use: a container, a control group or `taskset` may allow fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(read_text)
    return cores if quota is None else max(1, min(cores, math.floor(quota + 0.5)))


def cpu_quota(read: Read) -> float | None:
    """CPUs' worth of time that the control groups of this process allow; None if they set no limit."""
    quotas = list[float]()
    for group in groups_of("cpu", read):
        for names in _FILES:
            words = " ".join(read(group / name) or "" for name in names).split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def affinity() -> set[int]:
    """The numbers of the cores that this process may run on; none if the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
