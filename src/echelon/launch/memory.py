"""How much more memory this process and its children may use."""

from __future__ import annotations

import psutil

from echelon.launch.control_groups import Read, groups_of, read_text

_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Files with the limit and the usage, of cgroup v2 and v1."""


def available_memory() -> int:
    """Free bytes: a container or a job's control group may allow less than the machine has."""
    left = group_memory_left(read_text)
    free = int(psutil.virtual_memory().available)
    return free if left is None else min(free, left)


def group_memory_left(read: Read) -> int | None:
    """Bytes below the limits of this process's control groups, file caches counted as free; None without a limit."""
    left = list[int]()
    for group in groups_of("memory", read):
        for names in _FILES:
            limit, usage = ((read(group / name) or "").strip() for name in names)
            if limit.isdigit() and usage.isdigit():
                cached = _file_cache(read(group / "memory.stat") or "")
                left.append(max(0, int(limit) - int(usage) + cached))
    return min(left, default=None)


def _file_cache(statistics: str) -> int:
    """Bytes of the file cache, which the kernel can drop; groups below are included, as in the usage."""
    values = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
    value = values.get("total_inactive_file", values.get("inactive_file", "0")).strip()
    return int(value) if value.isdigit() else 0
