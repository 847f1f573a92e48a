"""`echelon cloud`: rented machines."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import Json
from echelon.cli.output import confirm, messages, show
from echelon.console import output_width
from echelon.errors import UserError

ClusterOrJob = Annotated[
    str, typer.Argument(metavar="NAME", help="The cluster's name, or a job's FILE.TOML.")
]


Region = Annotated[str | None, typer.Option(metavar="NAME", help="Also look in this region.")]


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


Force = Annotated[bool, typer.Option("--force", help="Go ahead even if the cluster is somebody else's.")]


def cloud_up(
    file: Annotated[
        Path, typer.Argument(metavar="CLUSTER.TOML", help="The machines to rent; see docs/cloud.md.")
    ],
    recipe: Annotated[
        Path | None, typer.Option(metavar="RECIPE", help="Vertex AI: the recipe to train.")
    ] = None,
    yes: Yes = False,
    force: Force = False,
    json_: Json = False,
) -> None:
    """Rent machines: show the bill, ask, create them. The same command again creates what is missing."""
    from echelon.cloud.cluster_spec import provider_of
    from echelon.commands.cloud import format_up, up
    from echelon.commands.cloud_vertex import run_job

    if provider_of(file) == "gcp":
        job = run_job(file, recipe, lambda question: yes or confirm(question, "submits"), messages())
        show(json_, job, f"{job['name']}: {job['state']}; its run is at {job['run']}")
        return
    result = up(file, lambda question: yes or confirm(question, "rents"), messages(), is_forced=force)
    show(json_, result, format_up(result))


def cloud_list(region: Region = None, json_: Json = False) -> None:
    """List all rented machines with age and cost, including forgotten ones."""
    from echelon.commands.cloud import format_list, list_clusters, listed_json

    listed = list_clusters(region)
    show(json_, listed_json(listed), format_list(listed, output_width()))


def cloud_ssh(
    name: ClusterOrJob,
    number: Annotated[
        int, typer.Argument(min=0, metavar="NUMBER", help="The number of the host, from 0.")
    ] = 0,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The command to run there.  [default: a shell]"),
    ] = None,
    forward: Annotated[
        int | None, typer.Option("-L", metavar="PORT", help="Forward this port of the host to this machine.")
    ] = None,
    json_: Json = False,
) -> None:
    """Log in to a host of a cluster."""
    from echelon.commands.cloud import ssh_command

    line = ssh_command(name, number, forward, command or [])
    if json_:
        show(True, {"command": line}, "")
        return
    try:
        os.execvp(line[0], line)
    except FileNotFoundError:
        raise UserError("there is no `ssh` on this machine; install the OpenSSH client") from None


def cloud_down(
    name: ClusterOrJob,
    region: Region = None,
    yes: Yes = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Go ahead even if it is somebody else's, or results that exist only there would be lost.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Terminate a cluster's machines and remove everything created for it."""
    from echelon.commands.cloud import down, format_down
    from echelon.commands.cloud_vertex import cancel_jobs

    if name.endswith(".toml"):
        cancelled = cancel_jobs(Path(name))
        show(json_, {"cancelled": cancelled}, f"cancelled: {', '.join(cancelled) or 'no job was running'}")
        return
    removed = down(
        name, region, lambda question: yes or confirm(question, "removes"), messages(), is_forced=force
    )
    show(json_, removed, format_down(removed))


def cloud_render(
    target: Annotated[
        Literal["vertex", "ibmcloud", "skypilot"],
        typer.Argument(metavar="vertex|ibmcloud|skypilot", help="The provider."),
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE.TOML", help="The machines to rent; see docs/cloud.md.")
    ],
    recipe: Annotated[Path | None, typer.Option(metavar="RECIPE", help="The recipe to train there.")] = None,
    json_: Json = False,
) -> None:
    """Print the job for another provider, without renting anything."""
    from echelon.commands.cloud_render import render_for

    text = render_for(target, file, recipe)
    show(json_, {"target": target, "text": text}, text.rstrip("\n"))


def cloud_prices(
    refresh: Annotated[bool, typer.Option("--refresh", help="Fetch today's prices from AWS first.")] = False,
    json_: Json = False,
) -> None:
    """Show the prices that bills and plans use, and their age."""
    import datetime

    from echelon.commands.cloud_prices import format_prices, format_refreshed, listed_prices, refresh_prices

    today = datetime.date.today()
    if refresh:
        result = refresh_prices(today, messages())
        show(json_, result, format_refreshed(result))
        return
    lists = listed_prices(today)
    show(json_, lists, format_prices(lists, output_width()))


CLOUD_VERBS: dict[str, Callable[..., None]] = {
    "up": cloud_up,
    "list": cloud_list,
    "ssh": cloud_ssh,
    "down": cloud_down,
    "render": cloud_render,
    "prices": cloud_prices,
}
