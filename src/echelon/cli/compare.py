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
    from echelon.commands.report import (
        choose_form,
        compare_runs,
        hourly_price,
        render_comparison,
        write_report,
    )

    form = choose_form("json" if json_ else None, to)
    comparison = compare_runs(runs, hourly_price(price, machine))
    text = render_comparison(comparison, form, output_width() if to is None else None)
    if to is None:
        write_out(text if json_ else wrap(text, output_width()))
        return
    write_report(to, text)
    messages().print(f"{to}: written", highlight=False)
