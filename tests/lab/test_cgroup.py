"""Finding the controller and writing its files, in folders that look like it; test_lab.py has the kernel's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.lab.cgroup import CpuController, find_cpu_controller


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.subtree_control").write_text("memory\n")
    return tmp_path / "mounts"


def test_version_1_is_found_by_its_mount(mounts: Path) -> None:
    mounts.write_text(
        "proc /proc proc rw 0 0\n"
        f"cgroup {mounts.parent}/cpuset cgroup rw,cpuset 0 0\n"
        f"cgroup {mounts.parent}/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n"
    )
    assert find_cpu_controller(mounts) == CpuController(mounts.parent / "cpu,cpuacct", 1)


def test_version_2_is_found_where_it_has_the_cpu_controller(mounts: Path) -> None:
    mounts.write_text(f"cgroup2 {mounts.parent}/unified cgroup2 rw 0 0\n")
    controllers = mounts.parent / "unified" / "cgroup.controllers"
    controllers.write_text("cpuset cpu io memory\n")
    assert find_cpu_controller(mounts) == CpuController(mounts.parent / "unified", 2)
    controllers.write_text("cpuset io memory\n")
    with pytest.raises(UserError, match="needs control groups"):
        find_cpu_controller(mounts)


@pytest.mark.parametrize(
    ("version", "files"),
    [(1, {"cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"}), (2, {"cpu.max": "10000 20000"})],
)
def test_half_a_cpu_is_half_of_each_period(mounts: Path, version: int, files: dict[str, str]) -> None:
    controller = CpuController(mounts.parent / "unified", 1 if version == 1 else 2)
    controller.make("group", cpus=0.5)
    assert {path.name: path.read_text() for path in controller.folder("group").iterdir()} == files


def test_version_2_passes_the_controller_on_where_the_system_has_not(mounts: Path) -> None:
    control = mounts.parent / "unified" / "cgroup.subtree_control"
    CpuController(control.parent, 2).make("group", cpus=1.0)
    assert control.read_text() == "+cpu"
    control.write_text("cpu memory\n")
    CpuController(control.parent, 2).make("other", cpus=1.0)
    assert control.read_text() == "cpu memory\n"


def test_a_group_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a control group for CPU time cannot be made here: No such file"):
        CpuController(tmp_path / "missing", 1).make("group", cpus=1.0)


def test_no_group_has_no_processes_and_is_removed_already(tmp_path: Path) -> None:
    controller = CpuController(tmp_path, 1)
    assert controller.processes("group") == []
    controller.remove("group")
