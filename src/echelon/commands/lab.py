"""`lab`: its verbs, and their results as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from echelon.lab.change import HostStatus
from echelon.lab.lab import Lab, LabStatus
from echelon.lab.layout import LabSpec, check_name
from echelon.lab.registry import find_plan
from echelon.lab.requirements import check_machine

HostVerb = Literal["cut", "heal", "kill", "boot", "freeze", "thaw"]


@dataclass(frozen=True)
class Removal:
    """What `lab down` did."""

    name: str
    removed: bool
    """False if there was no lab of that name."""
    kept: str | None
    """The shared folder, if it holds anything."""


def bring_up(spec: LabSpec) -> LabStatus:
    """Make a lab."""
    return Lab.up(spec).status()


def take_down(name: str) -> Removal:
    """Remove a lab, even one that was only partly made."""
    check_machine()
    check_name(name)
    plan = find_plan(name)
    if plan is None:
        return Removal(name, removed=False, kept=None)
    Lab(plan).down()
    return Removal(name, removed=True, kept=str(plan.shared) if plan.shared.exists() else None)


def change_host(name: str, verb: HostVerb, host: str) -> HostStatus:
    """Do something to a host."""
    lab = Lab.find(name)
    match verb:
        case "cut":
            return lab.cut(host)
        case "heal":
            return lab.heal(host)
        case "kill":
            return lab.kill(host)
        case "boot":
            return lab.boot(host)
        case "freeze":
            return lab.freeze(host)
        case "thaw":
            return lab.thaw(host)


def format_lab(lab: LabStatus) -> str:
    """A table of hosts, and how to reach them."""
    rows = [("HOST", "ADDRESS", "STATE", "RATE", "CPUS", "PROCESSES")]
    rows += [
        (host.name, host.address, format_state(host), host.rate, f"{host.cpus:g}", str(host.processes))
        for host in lab.hosts
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    table = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    places = [
        f"shared folder: {lab.shared}",
        f"each host's own disk: {lab.disk}",
        f"log in: ssh -F {lab.ssh_config} {lab.hosts[0].name}",
    ]
    return "\n".join([*table, *places])


def format_host(host: HostStatus) -> str:
    """A host in one line."""
    return f"{host.name}: {format_state(host)}, {host.rate}"


def format_state(host: HostStatus) -> str:
    """running, off, or what is wrong with it."""
    if not host.running:
        return "off"
    troubles = [word for word, is_so in (("cut off", not host.connected), ("frozen", host.frozen)) if is_so]
    return " and ".join(troubles) or "running"


def format_removal(removal: Removal) -> str:
    """How `lab down` ended."""
    if not removal.removed:
        return f"there is no lab {removal.name!r}"
    kept = f"; what is in {removal.kept} stays" if removal.kept else ""
    return f"the lab {removal.name!r} is removed{kept}"
