"""`echelon watch`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from echelon.cli.options import Json, MachineType, Price, RunArgument, TrustHosts, open_run
from echelon.cli.output import messages, show
from echelon.errors import UserError

if TYPE_CHECKING:
    from echelon.runfolder import RunFolder


def watch(
    run: RunArgument,
    *,
    logs: Annotated[bool, typer.Option("--logs", help="Also show what workers and agents print.")] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Serve the run's page, with charts, until Ctrl-C.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also serve TensorBoard on this machine.")
    ] = False,
    address: Annotated[
        str,
        typer.Option(help="The address that the page listens on; other than loopback, it asks for a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=1024, max=65535, help="The port of the page (default 6010) or of TensorBoard (default 6006)."
        ),
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    trust_hosts: TrustHosts = False,
    json_: Json = False,
) -> None:
    """Follow a run; q or Ctrl-C leaves, and the run continues."""
    folder = open_run(run, trust_hosts)
    if web and tensorboard:
        raise UserError("--web and --tensorboard are two pages; start a second `echelon watch` for the other")
    if web:
        from echelon.commands.report import hourly_price
        from echelon.commands.running import watch_page

        result = watch_page(folder, messages(), (address, port or 6010), hourly_price(price, machine))
        show(json_, result, f"{result['run']}: {result['state']} at step {result['step']:,}")
    elif tensorboard:
        from echelon.commands.tensorboard import open_tensorboard

        with open_tensorboard(folder, port or 6006) as board:
            messages().print(f"TensorBoard: {board}", highlight=False)
            show_run(folder, json_, may_stop=False, with_logs=logs)
    else:
        show_run(folder, json_, may_stop=False, with_logs=logs)


def show_run(run: RunFolder, as_json: bool, *, may_stop: bool, with_logs: bool = False) -> None:
    from echelon.commands.running import watch as watch_run

    result = watch_run(run, messages(), may_stop=may_stop, with_logs=with_logs)
    show(as_json, result, f"{result['run']}: {result['state']} at step {result['step']:,}")
