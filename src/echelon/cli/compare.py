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
    on: Annotated[
        str,
        typer.Option(
            metavar="SET",
            help="The set to compare scores on: test, valid, or one that `evaluate` has scored.",
        ),
    ] = "test",
    score: Annotated[
        bool, typer.Option("--score/--no-score", help="Score runs whose outputs were not kept.")
    ] = True,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the comparison to this file: .md, .html, .json, or text; or a paper's table: .tex, .csv.",
        ),
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    json_: Json = False,
) -> None:
    """Compare runs: do their scores differ, and how do their recipes and speed."""
    from echelon.commands.compare import (
        choose_comparison_form,
        compare_runs,
        render_comparison,
        score_missing,
    )
    from echelon.commands.report import hourly_price, write_report

    form = choose_comparison_form("json" if json_ else None, to)
    if score:
        score_missing(runs, on, messages())
    comparison = compare_runs(runs, hourly_price(price, machine), on)
    text = render_comparison(comparison, form, output_width() if to is None else None)
    if to is None:
        write_out(text if json_ else wrap(text, output_width()))
        return
    write_report(to, text)
    messages().print(f"{to}: written", highlight=False)
