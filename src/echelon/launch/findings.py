"""What is wrong with hosts, and what to do about it: pure functions of what probes found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from echelon.launch.hosts import Host
from echelon.launch.machine import Disk, Machine, Versions
from echelon.launch.routes import Network
from echelon.launch.session import ClockOffset

_MAX_CLOCK_S = 1.0
_SLOW_DISK = 20e6
_SLOW_LINK = 10e6
_FEW_OPEN_FILES = 1024
_SMALL_SHM = 64 << 20


@dataclass(frozen=True)
class Finding:
    """A problem of a host or of this machine. One that is not fatal is shown, and training starts anyway."""

    what: str
    remedy: str
    is_fatal: bool = True


@dataclass(frozen=True)
class PreparedData:
    """The prepared data that every host must see."""

    folder: Path
    key: str


@dataclass(frozen=True)
class Needs:
    """What a run requires of its hosts, and where it is on them."""

    run_folder: Path | None = None
    data: PreparedData | None = None
    disk_bytes: int = 1 << 30
    memory_bytes: int = 1 << 30
    python: str | None = None
    """Which Python to use there; None searches the usual places."""
    interface: str | None = None
    """Which network interface to use; None chooses one."""
    measures_link: bool = True
    """Whether the hosts are to try a short all-reduce, which takes some seconds."""
    container: str | None = None
    """The image in which everything runs there; None runs it on the host itself."""


@dataclass(frozen=True)
class HostFacts:
    """What a host said about itself."""

    machine: Machine
    disk: Disk | None
    """Where the run folder is or will be."""
    clock: ClockOffset
    data_problem: str | None
    """None if the data are there, or none are needed."""
    shares_run_folder: bool | None
    """Whether the run folder there is the one here; None if that could not be tried."""


@dataclass(frozen=True)
class MeasuredLink:
    """How fast all hosts exchange together; comm/linktest.py measures it."""

    bytes_per_s: float
    """What each host sends, and receives, a second."""
    latency_s: float


def judge_host(host: Host, facts: HostFacts, here: Versions, needs: Needs) -> list[Finding]:
    """What is wrong with one host, by itself."""
    return [
        *judge_versions(facts.machine.versions, here),
        *judge_memory(facts.machine, needs.memory_bytes),
        *judge_disk(facts.disk, facts.machine.user, needs.disk_bytes),
        *_judge_clock(facts.clock),
        *_judge_gpus(host, facts.machine),
        *_judge_data(facts.data_problem, needs),
        *judge_limits(facts.machine),
    ]


def judge_versions(there: Versions, here: Versions) -> list[Finding]:
    """Python's first two numbers, torch without its build, and Echelon to the byte must be the same."""
    findings = []
    if there.echelon != here.echelon:
        findings.append(f"Echelon {there.echelon}, here {here.echelon}")
    elif there.source != here.source:
        findings.append(
            f"Echelon {there.echelon} with other code than here ({there.source}, here {here.source})"
        )
    if _public(there.torch) != _public(here.torch):
        findings.append(f"torch {there.torch or 'missing'}, here {here.torch or 'missing'}")
    if there.python.split(".")[:2] != here.python.split(".")[:2]:
        findings.append(f"Python {there.python}, here {here.python}")
    return [Finding(what, "--install puts the same there") for what in findings]


def _public(version: str | None) -> str | None:
    """2.13.0+cpu and 2.13.0+cu130 are one version, built for different machines."""
    return version.partition("+")[0] if version else None


def judge_memory(machine: Machine, needed_bytes: int) -> list[Finding]:
    if machine.free_memory_bytes >= needed_bytes:
        return []
    what = f"{show_bytes(machine.free_memory_bytes)} of memory free, {show_bytes(needed_bytes)} needed"
    return [Finding(what, "end other programs there, or use fewer workers on it")]


def judge_disk(disk: Disk | None, user: str, needed_bytes: int) -> list[Finding]:
    if disk is None:
        return []
    if disk.write_bytes_per_s is None:
        return [
            Finding(
                f"cannot write in {disk.folder}: {disk.error}",
                f"let {user} write there, or choose another folder with --run",
            )
        ]
    if disk.free_bytes < needed_bytes:
        what = f"{show_bytes(disk.free_bytes)} free at {disk.folder}, {show_bytes(needed_bytes)} needed"
        return [Finding(what, "make room there, or choose another folder with --run")]
    if disk.write_bytes_per_s < _SLOW_DISK:
        what = f"{disk.folder} writes only {show_bytes(disk.write_bytes_per_s)}/s"
        return [Finding(what, "checkpoints will take long; --run on a faster disk is better", is_fatal=False)]
    return []


def _judge_clock(clock: ClockOffset) -> list[Finding]:
    if abs(clock.seconds) - clock.uncertainty_s < _MAX_CLOCK_S:
        return []
    side = "ahead" if clock.seconds > 0 else "behind"
    what = f"its clock is {abs(clock.seconds):,.0f} s {side}"
    return [Finding(what, "set it by NTP: `timedatectl set-ntp true`", is_fatal=False)]


def _judge_gpus(host: Host, machine: Machine) -> list[Finding]:
    gpus = len(machine.gpus)
    if not gpus or host.workers is None or host.workers <= gpus:
        return []
    return [Finding(f"{host.workers} workers for {gpus} GPUs", f"ask for {host.name}:{gpus}")]


def _judge_data(problem: str | None, needs: Needs) -> list[Finding]:
    if problem is None or needs.data is None:
        return []
    what = f"the recipe's data are not in {needs.data.folder}: {problem}"
    return [Finding(what, "--sync copies them there, or keep them in a folder that all hosts share")]


def judge_limits(machine: Machine) -> list[Finding]:
    findings = []
    if machine.max_open_files < _FEW_OPEN_FILES:
        what = f"only {machine.max_open_files} open files are allowed"
        findings.append(
            Finding(what, "raise the limit: `ulimit -n 65536`, or in limits.conf", is_fatal=False)
        )
    if machine.free_shm_bytes is not None and machine.free_shm_bytes < _SMALL_SHM:
        what = f"{show_bytes(machine.free_shm_bytes)} free in /dev/shm"
        findings.append(
            Finding(what, "make room there; a container needs --ipc=host or --shm-size=1g", is_fatal=False)
        )
    return findings


def judge_together(facts: Mapping[str, HostFacts]) -> dict[str, list[Finding]]:
    """Problems that show when hosts are compared: one machine under two names, GPUs that differ."""
    findings = dict[str, list[Finding]]()
    first = dict[str, str]()
    most = max((len(fact.machine.gpus) for fact in facts.values()), default=0)
    for name, fact in facts.items():
        other = first.setdefault(fact.machine.identity, name)
        if other != name:
            what = f"is the same machine as {other}"
            findings.setdefault(name, []).append(
                Finding(what, "name it once, with all its workers", is_fatal=False)
            )
        if len(fact.machine.gpus) < most:
            what = f"{len(fact.machine.gpus)} GPUs, another host has {most}"
            findings.setdefault(name, []).append(
                Finding(what, "if there should be more, see what `nvidia-smi` says there", is_fatal=False)
            )
    return findings


def judge_network(network: Network, hosts: Sequence[str], needs: Needs) -> dict[str, list[Finding]]:
    """Hosts without a way to the others, and pairs that cannot meet."""
    findings = dict[str, list[Finding]]()
    for name in hosts:
        if name not in network.routes:
            what = (
                f"no network interface {needs.interface}"
                if needs.interface
                else "no network interface to others"
            )
            remedy = (
                "name another with --interface" if needs.interface else "connect it to the others' network"
            )
            findings.setdefault(name, []).append(Finding(f"{what} that is up and has an address", remedy))
    for pair in network.unreached:
        what = f"cannot reach {pair.target} at {pair.route.address} ({pair.route.interface}): {pair.error}"
        findings.setdefault(pair.source, []).append(
            Finding(what, "open all ports between the hosts, and only between them, or name an --interface")
        )
    return findings


def judge_link(link: MeasuredLink | None) -> list[Finding]:
    if link is None or link.bytes_per_s >= _SLOW_LINK:
        return []
    what = f"the hosts exchange only {show_bytes(link.bytes_per_s)}/s"
    return [Finding(what, "a faster network, or another --interface, would help most", is_fatal=False)]


def show_bytes(count: float) -> str:
    """Short enough for a table: 12 kB, 3.4 MB, 5.6 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
