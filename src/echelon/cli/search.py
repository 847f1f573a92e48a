"""`echelon search`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.completion import complete_key
from echelon.cli.flags import takes_flags
from echelon.cli.options import Json, LengthFlags, RecipeFile, Set
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap
from echelon.search.proposals import Sampler

_TRIALS = "Trials"


@dataclass(frozen=True)
class TrialFlags:
    """Which trials there are, and which of them continue."""

    trials: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many settings to try.  [default: 16, or all of a grid]", rich_help_panel=_TRIALS
        ),
    ] = None
    sampler: Annotated[
        Sampler,
        typer.Option(
            help="How settings are chosen: from what earlier ones have shown (TPE), at random, or every combination.",
            rich_help_panel=_TRIALS,
        ),
    ] = "tpe"
    parallel: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many trials train side by side, each with its share of the cores.",
            rich_help_panel=_TRIALS,
        ),
    ] = 1
    factor: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="At each comparison, the best 1/N of the trials continue.  [default: 4]",
            metavar="N",
            rich_help_panel=_TRIALS,
        ),
    ] = None
    rungs: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="How often trials are compared before the end; 0 trains all of them to the end.  [default: as often "
            "as leaves one trial]",
            metavar="N",
            rich_help_panel=_TRIALS,
        ),
    ] = None


@takes_flags
def search(
    recipe: RecipeFile,
    *,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="A key and its values: A,B,C or LOW..HIGH, LOW..HIGH:log, LOW..HIGH:5 for five values. May be "
            "repeated.",
            autocompletion=complete_key,
        ),
    ],
    which: TrialFlags,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The folder for the trials.  [default: runs/NAME-search]"),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Where the page with charts goes.  [default: in the folder]"),
    ] = None,
    length: LengthFlags,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Find the best settings: many short trainings, of which the best continue. The same command resumes."""
    from echelon.commands.search import SearchOptions, run_search

    options = SearchOptions(
        recipe,
        vary,
        trials=which.trials,
        sampler=which.sampler,
        parallel=which.parallel,
        factor=which.factor,
        rungs=which.rungs,
        folder=folder,
        to=to,
        workers=length.workers,
        overrides=[*(set_ or []), *length.settings()],
    )
    found = run_search(options, messages())
    show(json_, found.to_json(), wrap(found.to_text(), output_width()))
    raise typer.Exit(0 if found.is_finished and found.best is not None else 1)
