"""How many cores a process may use, from what control groups say."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.launch.cores import cpu_quota


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "/proc/self/cgroup": "0::/pod/box\n",
                "/sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
                "/sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            },
            0.5,
        ),
        (
            {
                "/proc/self/cgroup": "4:memory:/m\n1:cpu,cpuacct:/lab/host1\n",
                "/sys/fs/cgroup/cpu/lab/host1/cpu.cfs_quota_us": "10000\n",
                "/sys/fs/cgroup/cpu/lab/host1/cpu.cfs_period_us": "20000\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
    ids=["nothing is known", "no limit", "a container", "a group above", "the older groups"],
)
def test_the_quota_is_what_the_control_groups_allow(files: dict[str, str], quota: float | None) -> None:
    def read(path: Path) -> str | None:
        return files.get(str(path))

    assert cpu_quota(read) == quota
