"""`echelon stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from echelon.cli.options import Json, RunArgument, TrustHosts, open_run
from echelon.cli.output import show


def stop(
    run: RunArgument,
    now: Annotated[bool, typer.Option("--now", help="Stop at once, without saving.")] = False,
    trust_hosts: TrustHosts = False,
    json_: Json = False,
) -> None:
    """Make a run save and stop, wherever it runs."""
    from echelon.commands.results import format_stop
    from echelon.commands.stop import stop as stop_run

    result = stop_run(open_run(run, trust_hosts), now=now)
    show(json_, result, format_stop(result))
