"""`prepare`: from a recipe's corpora to shards on disk, with progress shown."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from echelon.console import tell
from echelon.data import prepare as preparation
from echelon.data.held_out import notes_on
from echelon.data.images.prepare import find_images, prepare_images
from echelon.data.planning import AnyPrepared
from echelon.data.prepared import Prepared
from echelon.data.progress import Progress as StageProgress
from echelon.errors import UserError
from echelon.monitor.bar import open_bars, working
from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.store import is_address, put_folder


def prepare_data(recipe: Recipe, recipe_folder: Path, console: Console) -> AnyPrepared:
    """The recipe's prepared data: found by content, fetched from its address, or made now. Shows notes on them."""
    prepared = _prepare(recipe, recipe_folder, console)
    for note in data_notes(recipe, prepared):
        tell(console, note)
    return prepared


def data_notes(recipe: Recipe, prepared: AnyPrepared) -> list[str]:
    """What is allowed in the data but seldom meant."""
    if isinstance(recipe, TranslationRecipe) and isinstance(prepared, Prepared):
        return notes_on(prepared, recipe)
    return []


def _prepare(recipe: Recipe, recipe_folder: Path, console: Console) -> AnyPrepared:
    if isinstance(recipe, TranslationRecipe) and recipe.data.prepared is not None:
        with working(console, f"fetching the prepared data from {recipe.data.prepared}"):
            return preparation.fetch_prepared(recipe.data, preparation.default_cache())
    with open_bars(console) as bars:
        screen = _Screen(bars, console)
        cache = preparation.default_cache()
        match recipe:
            case TranslationRecipe():
                return preparation.prepare(
                    recipe.data,
                    recipe_folder=recipe_folder,
                    cache=cache,
                    progress=screen.show,
                    tokeniser=_given_tokeniser(recipe),
                )
            case ClassificationRecipe():
                return prepare_images(
                    recipe.data, recipe_folder=recipe_folder, cache=cache, progress=screen.show
                )


class _Screen:
    """A bar for each stage on a terminal; elsewhere a line when it begins, and for a download every tenth."""

    def __init__(self, bars: Progress, console: Console) -> None:
        self._bars = bars
        self._console = console
        self._tasks: dict[str, TaskID] = {}
        self._tenths: dict[str, int] = {}

    def show(self, progress: StageProgress) -> None:
        name = f"{progress.stage} {progress.what}".rstrip()
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, total=progress.total or None)
        self._bars.update(self._tasks[name], completed=progress.done, total=progress.total or None)
        tenth = 10 * progress.done // progress.total if progress.what and progress.total else 0
        if not self._console.is_terminal and tenth > self._tenths.get(name, -1):
            self._tenths[name] = tenth
            amount = (
                f" {10 * tenth}% of {progress.total / 1e6:,.1f} MB"
                if progress.what and progress.total
                else ""
            )
            self._console.print(f"preparing: {name}{amount}", highlight=False, markup=False, soft_wrap=True)


def find_data(recipe: Recipe, recipe_folder: Path) -> AnyPrepared | None:
    """The recipe's data where it has been prepared already."""
    cache = preparation.default_cache()
    match recipe:
        case TranslationRecipe() if recipe.data.prepared is not None:
            return preparation.find_fetched(recipe.data, cache)
        case TranslationRecipe():
            return preparation.find_prepared(
                recipe.data, recipe_folder=recipe_folder, cache=cache, tokeniser=_given_tokeniser(recipe)
            )
        case ClassificationRecipe():
            return find_images(recipe.data, recipe_folder=recipe_folder, cache=cache)


def _given_tokeniser(recipe: TranslationRecipe) -> Path | None:
    """Fine-tuning keeps the vocabulary of the run it starts from."""
    if recipe.train.init_from is None:
        return None
    return RunFolder(Path(recipe.train.init_from)).require().tokeniser


def put_data(prepared: AnyPrepared, address: str) -> str:
    """Copy prepared data to an address; where a recipe's `data.prepared` finds them."""
    if not is_address(address):
        raise UserError(f"--to {address}: write it as s3://bucket/folder or gs://bucket/folder")
    if not isinstance(prepared, Prepared):
        raise UserError(f"--to {address}: is for parallel text; pictures are prepared where they are used")
    place = f"{address.rstrip('/')}/{prepared.key}"
    put_folder(prepared.folder, place)
    return place
