"""`echelon lab`: hosts on one machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli.options import Json
from echelon.cli.output import show

if TYPE_CHECKING:
    from echelon.commands.lab import HostVerb


LabName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="The lab's name.  [default: the lab in this folder]",
        show_default=False,
    ),
]


LabHost = Annotated[str, typer.Argument(metavar="HOST", help="A host of the lab, e.g. host1.")]


def _choose(name: str | None) -> str:
    from echelon.lab.registry import choose_lab

    return choose_lab(name, Path.cwd())


def lab_up(
    *,
    hosts: Annotated[int, typer.Option(min=1, help="Number of hosts: host1, host2, ...")] = 4,
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Link rate of each host in each direction, e.g. 100mbit.")
    ] = "1gbit",
    cpus: Annotated[
        float | None,
        typer.Option(
            help="CPU share of each host.  [default: an equal share of this machine]", show_default=False
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder for the lab's files.  [default: ./NAME]", show_default=False
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The lab's name; several can be up at once.")] = "lab",
    json_: Json = False,
) -> None:
    """Create hosts on this machine, with a network between them."""
    from echelon.commands.lab import bring_up, format_lab
    from echelon.lab.layout import LabSpec

    result = bring_up(LabSpec(name, folder, hosts, rate, cpus))
    show(json_, result, format_lab(result))


def lab_down(name: LabName = None, json_: Json = False) -> None:
    """Remove the hosts and everything made for them, except the shared folder."""
    from echelon.commands.lab import format_removal, take_down

    result = take_down(_choose(name))
    show(json_, result, format_removal(result))


def lab_status(name: LabName = None, json_: Json = False) -> None:
    """Show the state of the hosts."""
    from echelon.commands.lab import format_lab
    from echelon.lab.lab import Lab

    result = Lab.find(_choose(name)).status()
    show(json_, result, format_lab(result))


def lab_rate(
    host: LabHost,
    rate: Annotated[str, typer.Argument(metavar="RATE", help="E.g. 100mbit.")],
    name: LabName = None,
    json_: Json = False,
) -> None:
    """Change a host's link rate, in both directions."""
    from echelon.commands.lab import format_host
    from echelon.lab.lab import Lab

    result = Lab.find(_choose(name)).rate(host, rate)
    show(json_, result, format_host(result))


def _lab_verb(verb: HostVerb, summary: str) -> Callable[..., None]:
    def change(host: LabHost, name: LabName = None, json_: Json = False) -> None:
        from echelon.commands.lab import change_host, format_host

        result = change_host(_choose(name), verb, host)
        show(json_, result, format_host(result))

    change.__doc__ = summary
    return change


LAB_VERBS: dict[str, Callable[..., None]] = {
    "up": lab_up,
    "down": lab_down,
    "status": lab_status,
    "cut": _lab_verb("cut", "Cut a host off from the network and the shared folder."),
    "heal": _lab_verb("heal", "Reconnect a host that was cut off."),
    "kill": _lab_verb("kill", "Cut a host's power: all its processes end at once."),
    "boot": _lab_verb("boot", "Boot a killed host."),
    "freeze": _lab_verb("freeze", "Suspend all processes of a host."),
    "thaw": _lab_verb("thaw", "Resume the processes of a frozen host."),
    "rate": lab_rate,
}
