"""Facts about this machine: versions, cores, memory, disk, GPUs, network interfaces."""

from __future__ import annotations

import contextlib
import getpass
import importlib.metadata
import ipaddress
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

import echelon
from echelon.launch.cores import available_cores
from echelon.launch.package import source_digest

_SPEED_BYTES = 64 << 20
_SPEED_S = 1.0
_BLOCK_BYTES = 4 << 20
_GPU_QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Versions:
    """Versions that must be the same on every host."""

    echelon: str
    source: str
    """The beginning of a SHA-256 over all of Echelon's files: the same version may be a changed checkout."""
    torch: str | None
    python: str


@dataclass(frozen=True)
class NetworkInterface:
    """A network interface that is up."""

    name: str
    addresses: tuple[str, ...]
    """IPv4 first; no link-local ones."""
    networks: tuple[str, ...]
    """The network of each address, e.g. 10.0.0.0/24."""
    speed_mbit: int
    """The driver's figure; 0 if it reports none."""
    is_loopback: bool


@dataclass(frozen=True)
class Gpu:
    """A GPU, as its driver describes it."""

    name: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class Disk:
    """Free space and write speed of the disk of a folder that exists or will be made."""

    folder: str
    """The folder, or the nearest one above it that exists."""
    free_bytes: int
    write_bytes_per_s: float | None
    """With fsync; None if nothing can be written."""
    error: str | None = None


@dataclass(frozen=True)
class Machine:
    """Everything about a machine that can be read without writing to it."""

    hostname: str
    identity: str
    """Equal for two processes that share a kernel and its network interfaces."""
    user: str
    executable: str
    versions: Versions
    cores: int
    memory_bytes: int
    free_memory_bytes: int
    free_shm_bytes: int | None
    max_open_files: int
    gpus: tuple[Gpu, ...]
    interfaces: tuple[NetworkInterface, ...]
    ssh_address: str | None
    """The address at which this ssh session reached the machine."""


def describe_machine() -> Machine:
    """This machine."""
    memory = psutil.virtual_memory()
    session = os.environ.get("SSH_CONNECTION", "").split()
    return Machine(
        hostname=socket.gethostname(),
        identity=_identity(),
        user=_user(),
        executable=sys.executable,
        versions=own_versions(),
        cores=available_cores(),
        memory_bytes=memory.total,
        free_memory_bytes=memory.available,
        free_shm_bytes=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None,
        max_open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        gpus=tuple(find_gpus()),
        interfaces=tuple(find_interfaces()),
        ssh_address=session[2] if len(session) == 4 else None,
    )


def own_versions() -> Versions:
    """The versions of this process and of what it would import."""
    torch = None
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.version("torch")
    return Versions(echelon.__version__, source_digest(), torch, platform.python_version())


def _identity() -> str:
    """Namespaces on one kernel are machines of their own: the lab's hosts are."""
    parts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/etc/machine-id"):
        with contextlib.suppress(OSError):
            parts.append(Path(path).read_text().strip())
            break
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/net"))
    return " ".join(parts) or socket.gethostname()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number without a name
        return str(os.getuid())


def find_interfaces() -> list[NetworkInterface]:
    """The network interfaces that are up and have an address."""
    states = psutil.net_if_stats()
    interfaces = []
    for name, entries in psutil.net_if_addrs().items():
        found = [entry for entry in entries if entry.family in (socket.AF_INET, socket.AF_INET6)]
        by_version = sorted(found, key=lambda entry: entry.family == socket.AF_INET6)
        parsed = [_parse_address(entry.address, entry.netmask) for entry in by_version]
        usable = [address for address in parsed if not address.is_link_local]
        if name in states and states[name].isup and usable:
            interfaces.append(
                NetworkInterface(
                    name,
                    addresses=tuple(str(address.ip) for address in usable),
                    networks=tuple(str(address.network) for address in usable),
                    speed_mbit=max(0, states[name].speed),
                    is_loopback=all(address.is_loopback for address in usable),
                )
            )
    return interfaces


def _parse_address(address: str, mask: str | None) -> ipaddress.IPv4Interface | ipaddress.IPv6Interface:
    """An address with its network; psutil gives the masks of IPv6 in full."""
    bits = bin(int(ipaddress.ip_address(mask))).count("1") if mask else 128 if ":" in address else 32
    return ipaddress.ip_interface(f"{address.partition('%')[0]}/{bits}")


def find_gpus() -> list[Gpu]:
    """The GPUs that NVIDIA's driver shows."""
    try:
        result = subprocess.run(_GPU_QUERY, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_gpus(result.stdout) if result.returncode == 0 else []


def parse_gpus(listing: str) -> list[Gpu]:
    """GPUs from nvidia-smi's lines `name, memory in MiB, driver`."""
    gpus = []
    for line in listing.splitlines():
        match [part.strip() for part in line.rsplit(",", 2)]:
            case [name, memory, driver] if memory.isdigit():
                gpus.append(Gpu(name, int(memory) << 20, driver))
    return gpus


def measure_disk(folder: Path) -> Disk:
    """Measure free space and write speed of the disk of `folder`, which need not exist; leaves nothing behind."""
    place = nearest_existing(folder)
    try:
        free = shutil.disk_usage(place).free
        return Disk(str(place), free, _write_speed(place, min(_SPEED_BYTES, free // 4)))
    except OSError as error:
        with contextlib.suppress(OSError):
            return Disk(str(place), shutil.disk_usage(place).free, None, error.strerror or str(error))
        return Disk(str(place), 0, None, error.strerror or str(error))


def nearest_existing(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
    return next(place for place in (folder, *folder.parents) if place.is_dir())


def _write_speed(folder: Path, limit_bytes: int) -> float:
    """Measure bytes per second, fsync included."""
    block = os.urandom(_BLOCK_BYTES)  # some file systems would not write zeros
    started, written = time.monotonic(), 0
    with tempfile.TemporaryFile(dir=folder, prefix=".echelon-") as file:
        while written < limit_bytes and time.monotonic() - started < _SPEED_S:
            written += file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return written / (time.monotonic() - started)
