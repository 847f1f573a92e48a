"""How much memory this process and those it starts may still take."""

from __future__ import annotations

import psutil

from echelon.launch.control_groups import Read, groups_of, read_text

_FILES = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Where limit and usage stand, by version."""


def available_memory() -> int:
    """Bytes that are free: a container or a job's control group may leave less than the machine has."""
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
    """Bytes of files that the kernel drops before it runs out: of groups below as well, as the usage counts them."""
    values = dict(line.split(" ", 1) for line in statistics.splitlines() if " " in line)
    value = values.get("total_inactive_file", values.get("inactive_file", "0")).strip()
    return int(value) if value.isdigit() else 0
