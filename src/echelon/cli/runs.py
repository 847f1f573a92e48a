"""`echelon runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echelon.cli.completion import complete_run
from echelon.cli.options import Json
from echelon.cli.output import confirm, messages, show
from echelon.console import output_width
from echelon.errors import UserError
from echelon.runfolder import RUNS, RunFolder


def runs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder that holds the runs.")] = RUNS,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete all checkpoints but the best, the last and those that are averaged.",
        ),
    ] = False,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="RUN", help="Delete a run. May be repeated.", autocompletion=complete_run),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before removing.")] = False,
    json_: Json = False,
) -> None:
    """List runs: state, steps, score, size. Prune or remove them."""
    from echelon.commands.results import format_runs
    from echelon.commands.runs import prune_runs, summarise_runs
    from echelon.commands.training import remove_run

    if folder != RUNS and not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; a run's name goes to `echelon status {folder}`")
    for doomed in [_named(name, folder) for name in remove or []]:
        if yes or confirm(f"Remove {doomed.path} with all its checkpoints?"):
            remove_run(doomed)
    if prune:
        freed = prune_runs(folder, lambda line: messages().print(line, markup=False, highlight=False))
        messages().print(f"freed {freed / 1e6:,.1f} MB", highlight=False)
    found = summarise_runs(folder)
    show(json_, [run.to_json() for run in found], format_runs(found, folder, output_width()))


def _named(name: str, folder: Path) -> RunFolder:
    """The run of that name in `folder`, or at that path."""
    below = RunFolder(folder / name)
    is_name = below.recipe.is_file() or Path(name).name == name
    return (below if is_name else RunFolder(Path(name))).require()
