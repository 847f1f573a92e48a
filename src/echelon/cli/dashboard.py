"""`echelon dashboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.options import Json, MachineType, Price
from echelon.cli.output import show


def dashboard(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="Folders with runs in them, at any depth.  [default: runs]",
            show_default=False,
        ),
    ] = None,
    *,
    address: Annotated[
        str, typer.Option(help="The address to listen on; other than loopback, the page asks for a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1024, max=65535, help="The port to serve on.")] = 6010,
    price: Price = None,
    machine: MachineType = None,
    json_: Json = False,
) -> None:
    """Serve a page of all runs, live: compare their curves, recipes, scores and costs. Ctrl-C ends it."""
    from echelon.commands.dashboard import serve_dashboard
    from echelon.commands.report import hourly_price

    def tell(addresses: list[str]) -> None:
        show(
            json_,
            {"addresses": addresses},
            f"The page of all runs: {' or '.join(addresses)} (Ctrl-C ends it)",
        )

    serve_dashboard(folders, (address, port), hourly_price(price, machine), tell)
