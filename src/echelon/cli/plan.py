"""`echelon plan`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.options import Epochs, Json, RecipeFile, Set, SshConfig, Steps, length_settings
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap
from echelon.errors import UserError


def plan(
    recipe: RecipeFile,
    *,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="A cluster: 4xg4dn.2xlarge, '2x(2xV100, 1gbit)', a hostfile, lab:NAME, or here. May be repeated.",
        ),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="hosts=1..1024", help="Draw the scaling curve of each exchange.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE.svg|FILE.png", help="Draw the sweep into a file.")
    ] = None,
    weak: Annotated[
        bool,
        typer.Option(
            "--weak",
            help="Weak scaling: every worker does the recipe's whole step, so the batch grows with the cluster.",
        ),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Measure a few steps here first, and use their speed.")
    ] = False,
    use_profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Use the speed that `benchmark --workers 1 --json` wrote."),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(min=0.0, help="What a host costs, in dollars per hour, instead of the list price."),
    ] = None,
    ssh_config: SshConfig = None,
    steps: Steps = None,
    epochs: Epochs = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Predict step time, traffic, hours and cost on clusters."""
    from echelon.commands.plan import PlanOptions, draw_sweep, make_plan

    if chart is not None and sweep is None:
        raise UserError("--chart draws a sweep; say which with --sweep hosts=1..64")
    if profile and use_profile is not None:
        raise UserError("--profile measures, --use-profile reads what was measured; use one of them")
    source = "here" if profile else str(use_profile) if use_profile is not None else None
    settings = [*length_settings(steps, epochs), *(set_ or [])]
    options = PlanOptions(recipe, on or [], settings, source, sweep, weak, ssh_config, price)
    made = make_plan(options, messages())
    if chart is not None:
        draw_sweep(made, chart)
        messages().print(f"{chart}: written", highlight=False)
    width = output_width()
    show(json_, made.to_json(), wrap(made.to_text(width), width))
