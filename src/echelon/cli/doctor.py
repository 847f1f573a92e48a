"""`echelon doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import (
    AwsAddress,
    Hostfile,
    HostPython,
    HostsOption,
    Interface,
    Json,
    SshConfig,
    name_hosts,
)
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap
from echelon.errors import UserError
from echelon.monitor.bar import working


def doctor(
    *,
    hosts: HostsOption = None,
    hostfile: Hostfile = None,
    ssh_config: SshConfig = None,
    run: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder, to check its disk.")
    ] = None,
    python: HostPython = None,
    interface: Interface = None,
    container: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Check the hosts from inside a container of this image."),
    ] = None,
    aws_address: AwsAddress = "private",
    launcher: Annotated[
        Literal["ray"] | None, typer.Option(help="Check a Ray cluster and its nodes as well.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="The Ray cluster's head.  [default: the one that is found here]"
        ),
    ] = None,
    task: Annotated[
        Path | None,
        typer.Option(
            metavar="RECIPE",
            help="Check the task of your own that this recipe names, and nothing else: is a slot's result its own?",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Check that everything is ready, here and on the hosts; exit status 1 if it is not."""
    from echelon.commands.doctor import diagnose, diagnose_with_ray
    from echelon.commands.readiness import format_diagnosis
    from echelon.launch.findings import Needs
    from echelon.launch.ssh import find_config

    if task is not None:
        _check_task(task, as_json=json_)
        return
    named = name_hosts(hosts, hostfile, aws_address)
    needs = Needs(run.absolute() if run else None, python=python, interface=interface, container=container)
    if named and launcher:
        raise UserError("--hosts and --launcher ray name different machines; check one, then the other")
    if address and not launcher:
        raise UserError("--address goes with --launcher ray")
    looked_at = ["this machine", *map(str, named), *(["Ray"] if launcher else [])]
    with working(messages(), f"looking at {', '.join(looked_at)}"):
        ray = diagnose_with_ray(address, needs) if launcher else None
        diagnosis = ray or diagnose(named, find_config(ssh_config), needs)
    show(json_, diagnosis.to_json(), wrap(format_diagnosis(diagnosis), output_width()))
    if not diagnosis.is_fit:
        raise typer.Exit(1)


def _check_task(recipe: Path, *, as_json: bool) -> None:
    from echelon.commands.task_check import check_task, format_check
    from echelon.recipe.loading import allow_named

    allow_named(recipe)
    with working(messages(), f"computing slots of {recipe}, twice and in another process"):
        found = check_task(recipe)
    show(as_json, found, wrap(format_check(found), output_width()))
    if found["findings"]:
        raise typer.Exit(1)
