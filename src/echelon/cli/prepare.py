"""`echelon prepare`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from echelon.cli.options import Json, RecipeFile, Set
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap


def prepare(
    recipe: RecipeFile,
    to: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Also copy the data to s3://bucket/folder or gs://..."),
    ] = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Clean, tokenise and shard a recipe's data; done once."""
    from echelon.commands.prepare import data_notes, format_prepared, prepare_data, put_data
    from echelon.recipe.loading import load_recipe

    loaded = load_recipe(recipe, set_ or [])
    prepared = prepare_data(loaded, recipe.parent, messages())
    summary = {
        "folder": str(prepared.folder),
        "key": prepared.key,
        "notes": data_notes(loaded, prepared),
        "manifest": dataclasses.asdict(prepared.manifest),
    }
    words = format_prepared(loaded, prepared)
    if to is not None:
        summary["address"] = put_data(loaded, prepared, to)
        words += f'\nfor hosts that do not have the corpora: --set data.prepared="{summary["address"]}"'
    show(json_, summary, wrap(words, output_width()))
