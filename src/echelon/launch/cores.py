"""How many cores this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Cores this process may use: a container, a control group or `taskset` may leave it fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(read_text)
    return cores if quota is None else max(1, min(cores, math.floor(quota + 0.5)))


def cpu_quota(read: Callable[[Path], str | None]) -> float | None:
    """CPUs' worth of time that the control groups of this process allow; None where they set no limit."""
    quotas = list[float]()
    for line in (read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for root in (_GROUPS, _GROUPS / "unified"):
                quotas += _quotas(read, root, path, "cpu.max", None)
        elif "cpu" in controllers.split(","):
            quotas += _quotas(read, _GROUPS / "cpu", path, "cpu.cfs_quota_us", "cpu.cfs_period_us")
    return min(quotas, default=None)


def _quotas(
    read: Callable[[Path], str | None], root: Path, path: str, limit_file: str, period_file: str | None
) -> list[float]:
    """The limits of a group and of all groups above it."""
    found, group = list[float](), root / path.strip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        words = f"{read(folder / limit_file) or ''} {read(folder / period_file) or '' if period_file else ''}".split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return found


def read_text(path: Path) -> str | None:
    """What a file says; None where there is none."""
    try:
        return path.read_text()
    except OSError:
        return None
