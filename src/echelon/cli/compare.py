"""`echelon compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.options import Json, MachineType, Price, Runs
from echelon.cli.output import messages
from echelon.console import output_width, wrap, write_out


def compare(
    runs: Runs,
    *,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the comparison to this file: .md, .html, .json, or text."),
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    json_: Json = False,
) -> None:
    """Compare runs: how their recipes, speed and scores differ."""
    from echelon.commands import reporting

    comparison = reporting.compare_runs(runs, reporting.hourly_price(price, machine))
    text = reporting.render_comparison(comparison, "json" if json_ else reporting.choose_form(None, to))
    if to is None:
        write_out(text if json_ else wrap(text, output_width()))
        return
    reporting.write_report(to, text)
    messages().print(f"{to}: written", highlight=False)
