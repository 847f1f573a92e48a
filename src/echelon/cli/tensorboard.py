"""`echelon tensorboard`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from echelon.cli.options import Json, RunArgument, TrustHosts, open_run
from echelon.cli.output import show


def tensorboard(
    run: RunArgument,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="The port to serve on.")] = 6006,
    trust_hosts: TrustHosts = False,
    json_: Json = False,
) -> None:
    """Start TensorBoard on a run, until Ctrl-C."""
    from echelon.commands.running import wait_for_interrupt
    from echelon.commands.tensorboard import open_tensorboard

    with open_tensorboard(open_run(run, trust_hosts), port) as board:
        show(json_, {"address": board}, f"TensorBoard: {board} (Ctrl-C ends it)")
        sys.stdout.flush()
        wait_for_interrupt()
