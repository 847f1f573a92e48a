"""`prepare`: from a recipe's corpora to shards on disk, with progress shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from echelon.data import prepare as preparation
from echelon.data.prepared import Prepared
from echelon.data.stages import Progress as StageProgress
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder


def prepare_data(recipe: Recipe, recipe_folder: Path, console: Console) -> Prepared:
    """The recipe's prepared data: found by content, or made now."""
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
