"""`echelon report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import Json, MachineType, Price, Runs
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap, write_out
from echelon.errors import UserError


def report(
    runs: Runs,
    *,
    form: Annotated[
        Literal["text", "markdown", "json", "html"] | None,
        typer.Option("--format", help="The format.  [default: by the file's ending, or text]"),
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report to this file.")] = None,
    reference: Annotated[
        Path | None,
        typer.Option(metavar="CURVE.csv", help="Compare the run with a known curve: is it on track?"),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tar.gz", help="Pack answers, charts, records and logs into an archive to hand in."
        ),
    ] = None,
    price: Price = None,
    machine: MachineType = None,
    json_: Json = False,
) -> None:
    """Explain runs: where time, bytes and money went, and what to improve."""
    from echelon.commands.report import (
        choose_form,
        hourly_price,
        make_reports,
        render_report,
        write_bundle,
        write_report,
    )

    reports = make_reports(runs, hourly_price(price, machine), reference)
    if (to is not None or bundle is not None) and len(reports) > 1:
        raise UserError("--to and --bundle take one run; `echelon compare` puts several into one file")
    chosen = choose_form("json" if json_ else form, to)
    if bundle is not None:
        names = write_bundle(reports[0], bundle)
        messages().print(f"{bundle}: {len(names)} files", highlight=False)
    if to is not None:
        write_report(to, render_report(reports[0], chosen))
        messages().print(f"{to}: written", highlight=False)
        return
    if chosen == "json" and len(reports) > 1:
        show(True, [each.to_json() for each in reports], "")
        return
    text = "\n".join(render_report(each, chosen, output_width()) for each in reports)
    write_out(wrap(text, output_width()) if chosen == "text" else text)
