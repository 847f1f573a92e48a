"""`echelon evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from echelon.cli.flags import takes_flags
from echelon.cli.options import Json, RunArgument, Set, Which
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap

_DATA = "Which data"


@dataclass(frozen=True)
class DataFlags:
    """Which set to score."""

    split: Annotated[
        Literal["valid", "test"] | None,
        typer.Option(help="Which of the run's own sets to score.  [default: test]", rich_help_panel=_DATA),
    ] = None
    source: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Score another set: the lines to translate, and ...", rich_help_panel=_DATA
        ),
    ] = None
    target: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="... their reference translations.", rich_help_panel=_DATA),
    ] = None
    test: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SOURCE,TARGET",
            help="The same with a name; or NAME=PAIRS for a .tsv, .tmx, .po or .mo file. May be repeated.",
            rich_help_panel=_DATA,
        ),
    ] = None
    images: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER",
            help="Score a classifier on the images in FOLDER/CLASS/. May be repeated.",
            rich_help_panel=_DATA,
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            help="The name of the set in RUN/scores.  [default: the name of its file or folder]",
            rich_help_panel=_DATA,
        ),
    ] = None


@takes_flags
def evaluate(
    run: RunArgument, *, checkpoint: Which = None, data: DataFlags, set_: Set = None, json_: Json = False
) -> None:
    """Score a checkpoint: BLEU, chrF, loss, perplexity; or top-1, top-5, loss."""
    from echelon.commands.given_sets import SetOptions
    from echelon.commands.results import format_evaluation
    from echelon.runfolder import RunFolder

    folder = RunFolder(run).require()
    from echelon.commands.evaluate import EvaluateOptions
    from echelon.commands.evaluate import evaluate as score

    sets = SetOptions(data.source, data.target, data.name, data.test or [], data.images or [])
    results = score(folder, EvaluateOptions(checkpoint, data.split, sets, set_ or []), messages())
    words = wrap("\n\n".join(map(format_evaluation, results)), output_width())
    show(json_, results[0] if len(results) == 1 else {"sets": results}, words)
