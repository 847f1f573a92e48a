"""`prepare`: from a recipe's corpora to shards on disk, with progress shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from echelon.data import prepare as preparation
from echelon.data.prepared import Prepared
from echelon.data.stages import Progress as StageProgress
from echelon.errors import UserError
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder
from echelon.store import is_address, put_folder


def prepare_data(recipe: Recipe, recipe_folder: Path, console: Console) -> Prepared:
    """The recipe's prepared data: found by content, fetched from its address, or made now."""
    if recipe.data.prepared is not None:
        return preparation.fetch_prepared(recipe.data, preparation.default_cache())
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        stages: dict[str, Any] = {}

        def show(progress: StageProgress) -> None:
            if progress.stage not in stages:
                stages[progress.stage] = bars.add_task(progress.stage)
                if not console.is_terminal:
                    console.print(f"preparing: {progress.stage}", highlight=False)
            bars.update(stages[progress.stage], completed=progress.done, total=progress.total)

        return preparation.prepare(
            recipe.data,
            recipe_folder=recipe_folder,
            cache=preparation.default_cache(),
            progress=show,
            tokeniser=_given_tokeniser(recipe),
        )


def find_data(recipe: Recipe, recipe_folder: Path) -> Prepared | None:
    """The recipe's data where it has been prepared already."""
    if recipe.data.prepared is not None:
        return preparation.find_fetched(recipe.data, preparation.default_cache())
    return preparation.find_prepared(
        recipe.data,
        recipe_folder=recipe_folder,
        cache=preparation.default_cache(),
        tokeniser=_given_tokeniser(recipe),
    )


def _given_tokeniser(recipe: Recipe) -> Path | None:
    """Fine-tuning keeps the vocabulary of the run it starts from."""
    if recipe.train.init_from is None:
        return None
    return RunFolder(Path(recipe.train.init_from)).require().tokeniser


def put_data(prepared: Prepared, address: str) -> str:
    """Copy prepared data to an address; where a recipe's `data.prepared` finds them."""
    if not is_address(address):
        raise UserError(f"--to {address}: write it as s3://bucket/folder or gs://bucket/folder")
    place = f"{address.rstrip('/')}/{prepared.key}"
    put_folder(prepared.folder, place)
    return place
