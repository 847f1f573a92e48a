"""Whether this machine and the hosts are ready, as text. Pure functions."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from echelon.commands.doctor import Diagnosis, Here
from echelon.launch.check import HostReport
from echelon.launch.findings import Finding, HostFacts, show_bytes
from echelon.launch.machine import Disk

_WIDTH = 160


def format_diagnosis(diagnosis: Diagnosis) -> str:
    """All findings of `doctor`, with remedies."""
    here = "\n".join([*_here_lines(diagnosis.here), *_finding_lines("", diagnosis.findings)])
    verdict = (
        "everything is ready" if diagnosis.is_fit else "something needs doing: see the lines marked with ✗"
    )
    return "\n".join([here, *([format_hosts(diagnosis.hosts)] if diagnosis.hosts else []), verdict])


def format_hosts(reports: Sequence[HostReport]) -> str:
    """All hosts in one table, followed by every problem of every host."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("HOST", "STATE", "CORES", "GPUS", "MEMORY", "DISK", "CLOCK", "NETWORK", "RUN FOLDER"):
        table.add_column(title, no_wrap=True)
    for report in reports:
        table.add_row(*_row(report))
    buffer = io.StringIO()
    Console(file=buffer, width=_WIDTH, color_system=None).print(table, highlight=False)
    lines = [line.rstrip() for line in buffer.getvalue().splitlines()]
    for report in reports:
        lines += _finding_lines(f"{report.host.name}: ", report.findings)
    return "\n".join([*lines, *_link_lines(reports)])


def _row(report: HostReport) -> list[str]:
    problems = sum(finding.is_fatal for finding in report.findings)
    state = "ready" if not problems else "1 problem" if problems == 1 else f"{problems} problems"
    facts, route = report.facts, report.route
    if facts is None:
        return [str(report.host), state]
    return [
        str(report.host),
        state,
        str(facts.machine.cores),
        str(len(facts.machine.gpus)),
        f"{show_bytes(facts.machine.free_memory_bytes)} free",
        _show_disk(facts.disk) if facts.disk else "",
        f"{round(facts.clock.seconds * 1000):+d} ms",
        f"{route.interface} {route.address}" if route else "none",
        _show_sharing(facts),
    ]


def _show_disk(disk: Disk) -> str:
    if disk.write_bytes_per_s is None:
        return "not writable"
    return f"{show_bytes(disk.free_bytes)} free, {show_bytes(disk.write_bytes_per_s)}/s"


def _show_sharing(facts: HostFacts) -> str:
    return {None: "", True: "shared", False: "its own"}[facts.shares_run_folder]


def _link_lines(reports: Sequence[HostReport]) -> list[str]:
    link = next((report.link for report in reports if report.link), None)
    if link is None:
        return []
    speed = f"{show_bytes(link.bytes_per_s)}/s each way"
    return [
        f"network: {len(reports)} hosts exchange {speed}, a single number in {link.latency_s * 1000:.2g} ms"
    ]


def _here_lines(here: Here) -> list[str]:
    machine, disk, versions = here.machine, here.disk, here.machine.versions
    gpus = ", ".join(
        f"{gpu.name} ({show_bytes(gpu.memory_bytes)}, driver {gpu.driver})" for gpu in machine.gpus
    )
    interfaces = "; ".join(f"{each.name} {', '.join(each.addresses)}" for each in machine.interfaces)
    memory = f"{show_bytes(machine.memory_bytes)}, {show_bytes(machine.free_memory_bytes)} free"
    shm = (
        f"; /dev/shm {show_bytes(machine.free_shm_bytes)} free" if machine.free_shm_bytes is not None else ""
    )
    others = [f"{name}: {text}" for name, text in here.tools.items() if text]
    return [
        f"this machine: {machine.hostname}",
        f"  Echelon {versions.echelon} ({versions.source}), torch {versions.torch}, Python {versions.python} "
        f"({machine.executable})",
        f"  cores: {machine.cores}",
        f"  memory: {memory}{shm}",
        f"  GPUs: {gpus or 'none'}",
        f"  disk: {disk.folder}: {_show_disk(disk)}",
        f"  open files: {machine.max_open_files:,}",
        f"  network: {interfaces}",
        *(f"  {line}" for line in others),
        f"  lab: {here.lab_problem or 'possible'}",
    ]


def _finding_lines(where: str, findings: Sequence[Finding]) -> list[str]:
    return [
        f"{'✗' if finding.is_fatal else '!'} {where}{finding.what}; {finding.remedy}".rstrip("; ")
        for finding in findings
    ]
