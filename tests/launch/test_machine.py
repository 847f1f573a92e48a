"""What a machine says about itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from echelon.launch import machine
from echelon.launch.cores import available_cores
from echelon.launch.machine import (
    Gpu,
    describe_machine,
    find_interfaces,
    measure_disk,
    parse_gpus,
)


def test_a_machine_describes_itself() -> None:
    described = describe_machine()
    assert described.hostname == os.uname().nodename
    assert described.cores == available_cores()
    assert 0 < described.free_memory_bytes <= described.memory_bytes
    assert described.versions.torch is not None
    assert described.identity == describe_machine().identity


def test_loopback_is_told_from_other_interfaces() -> None:
    (loopback,) = [interface for interface in find_interfaces() if interface.is_loopback]
    assert loopback.addresses[0] == "127.0.0.1"


def test_gpus_are_read_from_what_the_driver_prints() -> None:
    listing = "NVIDIA A100-SXM4-40GB, 40960, 550.54.15\nTesla V100, 16G, 32768, 550.54.15\nno devices\n"
    assert parse_gpus(listing) == [
        Gpu("NVIDIA A100-SXM4-40GB", 40960 << 20, "550.54.15"),
        Gpu("Tesla V100, 16G", 32768 << 20, "550.54.15"),
    ]


def test_a_disk_is_measured_where_the_folder_will_be_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_SPEED_BYTES", 8 << 20)
    disk = measure_disk(tmp_path / "not" / "yet")
    assert disk.folder == str(tmp_path)
    assert disk.free_bytes > 0
    assert disk.write_bytes_per_s
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_cannot_be_written_is_told() -> None:
    disk = measure_disk(Path("/proc/echelon"))
    assert disk.write_bytes_per_s is None
    assert disk.error
