"""How much memory this process and those it starts may still take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil

from echelon.launch.cores import read_text

_GROUPS = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that are free: a container or a job's control group may leave less than the machine has."""
    left = group_memory_left(read_text)
    free = int(psutil.virtual_memory().available)
    return free if left is None else min(free, left)


def group_memory_left(read: Callable[[Path], str | None]) -> int | None:
    """Bytes below the limits of this process's control groups, file caches counted as free; None without a limit."""
    left = list[int]()
    for line in (read(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for root in (_GROUPS, _GROUPS / "unified"):
                left += _left(read, root, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            left += _left(read, _GROUPS / "memory", path, *names)
    return min(left, default=None)


def _left(
    read: Callable[[Path], str | None], root: Path, path: str, limit_file: str, usage_file: str
) -> list[int]:
    """What a group and each of the groups above it leave."""
    found, group = list[int](), root / path.strip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        limit, usage = ((read(folder / name) or "").strip() for name in (limit_file, usage_file))
        if limit.isdigit() and usage.isdigit():
            cached = _file_cache(read(folder / "memory.stat") or "")
            found.append(max(0, int(limit) - int(usage) + cached))
    return found


def _file_cache(statistics: str) -> int:
    """Bytes of files that the kernel drops before it runs out: of groups below as well, as the usage counts them."""
    values = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
    value = values.get("total_inactive_file", values.get("inactive_file", "0")).strip()
    return int(value) if value.isdigit() else 0
