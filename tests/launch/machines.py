"""A machine as it would describe itself, for tests that decide from such descriptions."""

from __future__ import annotations

from echelon.launch.machine import Machine, Versions

VERSIONS = Versions("0.1.0", "0" * 12, "2.13.0+cpu", "3.11.7")
MACHINE = Machine(
    hostname="a",
    identity="a",
    user="me",
    executable="/usr/bin/python3",
    versions=VERSIONS,
    cores=8,
    memory_bytes=16 << 30,
    free_memory_bytes=8 << 30,
    free_shm_bytes=4 << 30,
    max_open_files=65536,
    gpus=(),
    interfaces=(),
    ssh_address=None,
)
