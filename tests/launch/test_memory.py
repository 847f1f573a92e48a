"""How much memory a process may still take, from what control groups say."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.launch.memory import group_memory_left

V2 = Path("/sys/fs/cgroup")
V1 = V2 / "memory"


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        ("", {}, None),
        ("0::/\n", {V2 / "memory.max": "max\n", V2 / "memory.current": "500\n"}, None),
        ("0::/\n", {V2 / "memory.max": "1000\n", V2 / "memory.current": "300\n"}, 700),
        (
            "0::/\n",
            {
                V2 / "memory.max": "1000\n",
                V2 / "memory.current": "900\n",
                V2 / "memory.stat": "anon 300\nfile 600\ninactive_file 500\n",
            },
            600,
        ),
        (
            "0::/job/step\n",
            {
                V2 / "job/step/memory.max": "max\n",
                V2 / "job/step/memory.current": "100\n",
                V2 / "job/memory.max": "1000\n",
                V2 / "job/memory.current": "1200\n",
            },
            0,
        ),
        (
            "4:memory:/box\n1:cpu,cpuacct:/box\n",
            {
                V1 / "box/memory.limit_in_bytes": "1000\n",
                V1 / "box/memory.usage_in_bytes": "400\n",
                V1 / "box/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
                V1 / "memory.limit_in_bytes": "9223372036854771712\n",
                V1 / "memory.usage_in_bytes": "5000\n",
            },
            700,
        ),
    ],
    ids=["nothing is known", "no limit", "a container", "file caches", "a group above", "the older groups"],
)
def test_what_is_left_is_what_the_control_groups_allow(
    groups: str, files: dict[Path, str], left: int | None
) -> None:
    there = {Path("/proc/self/cgroup"): groups, **files}
    assert group_memory_left(there.get) == left
