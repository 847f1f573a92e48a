"""`echelon status`."""

from __future__ import annotations

from echelon.cli.options import Json, RunArgument, TrustHosts, open_run
from echelon.cli.output import show
from echelon.console import output_width, wrap


def status(run: RunArgument, trust_hosts: TrustHosts = False, json_: Json = False) -> None:
    """Show how far a run is, here or on its hosts."""
    from echelon.commands.results import format_status
    from echelon.commands.status import get_status

    result = get_status(open_run(run, trust_hosts))
    show(json_, result.to_json(), wrap(format_status(result), output_width()))
