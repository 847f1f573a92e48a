"""`echelon experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.options import Json, LocalWorkers, RecipeFile, Set
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap


def experiment(
    kind: Annotated[
        Literal["checkpoints", "resume", "workers", "exchanges"],
        typer.Argument(
            metavar="checkpoints|resume|workers|exchanges",
            help="Measure what checkpoints cost; whether a resumed run is the same; 1, 2 and 4 workers; all-reduce "
            "against other exchanges.",
        ),
    ],
    recipe: RecipeFile,
    *,
    steps: Annotated[int, typer.Option(min=2, help="Steps of each run.")] = 2000,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder for its runs.  [default: experiments/KIND]")
    ] = None,
    workers: LocalWorkers = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Run a small study: several trainings, a table and a chart."""
    from echelon.commands.experiment import ExperimentOptions, run_experiment

    folder = to or Path("experiments") / kind
    options = ExperimentOptions(kind, recipe, steps, folder, workers, set_ or [])
    outcome = run_experiment(options, messages())
    show(json_, outcome.to_json(), wrap(outcome.to_text(), output_width()))
