"""`echelon attach`."""

from __future__ import annotations

from echelon.cli.options import Json, RunArgument, TrustHosts, open_run
from echelon.cli.watch import show_run


def attach(run: RunArgument, trust_hosts: TrustHosts = False, json_: Json = False) -> None:
    """Follow a run; Ctrl-C makes it save and stop."""
    show_run(open_run(run, trust_hosts), json_, may_stop=True)
