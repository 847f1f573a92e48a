"""`prepare`: from a recipe's corpora to shards on disk, with progress shown."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import Progress, TaskID

from echelon.console import tell
from echelon.data.batch_plan import AnyPrepared
from echelon.data.prepare import default_cache, ignore
from echelon.data.progress import Progress as StageProgress
from echelon.data.progress import ReportProgress
from echelon.errors import UserError
from echelon.monitor.bar import open_bars, working
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task
from echelon.store import is_address


class PrepareDeclaration(Protocol):
    """What a task says about preparing its data."""

    def fetched_from(self, recipe: Recipe) -> str | None:
        """The address that prepared data are fetched from, if they are not to be made."""
        ...

    def prepare(
        self, recipe: Recipe, recipe_folder: Path, cache: Path, progress: ReportProgress
    ) -> AnyPrepared:
        """Find the data prepared, fetch them, or make them."""
        ...

    def find_data(self, recipe: Recipe, recipe_folder: Path, cache: Path) -> AnyPrepared | None:
        """The data if they are prepared already."""
        ...

    def data_notes(self, recipe: Recipe, prepared: AnyPrepared) -> list[str]:
        """Notes on data that are allowed but rarely intended."""
        ...

    def format_prepared(self, prepared: AnyPrepared) -> str:
        """The summary of prepared data as text."""
        ...

    def put_data(self, prepared: AnyPrepared, address: str) -> str:
        """Copy prepared data to an address; return where a recipe finds them."""
        ...


def prepare_data(recipe: Recipe, recipe_folder: Path, console: Console) -> AnyPrepared:
    """The recipe's prepared data: found by content, fetched from its address, or made now. Shows notes on them."""
    prepared = _prepare(recipe, recipe_folder, console)
    for note in data_notes(recipe, prepared):
        tell(console, note)
    return prepared


def data_notes(recipe: Recipe, prepared: AnyPrepared) -> list[str]:
    """Notes on data that are allowed but rarely intended."""
    task: PrepareDeclaration = find_task(recipe.task)
    return task.data_notes(recipe, prepared)


def format_prepared(recipe: Recipe, prepared: AnyPrepared) -> str:
    """The summary of prepared data as text."""
    task: PrepareDeclaration = find_task(recipe.task)
    return task.format_prepared(prepared)


def _prepare(recipe: Recipe, recipe_folder: Path, console: Console) -> AnyPrepared:
    task: PrepareDeclaration = find_task(recipe.task)
    cache = default_cache()
    if (address := task.fetched_from(recipe)) is not None:
        with working(console, f"fetching the prepared data from {address}"):
            return task.prepare(recipe, recipe_folder, cache, ignore)
    with open_bars(console) as bars:
        return task.prepare(recipe, recipe_folder, cache, _StageScreen(bars, console).show)


class _StageScreen:
    """A bar for each stage on a terminal; elsewhere a line at its start, and at every tenth of a download."""

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
    """The recipe's data if they have been prepared already."""
    task: PrepareDeclaration = find_task(recipe.task)
    return task.find_data(recipe, recipe_folder, default_cache())


def put_data(recipe: Recipe, prepared: AnyPrepared, address: str) -> str:
    """Copy prepared data to an address; return where a recipe's `data.prepared` finds them."""
    if not is_address(address):
        raise UserError(f"--to {address}: write it as s3://bucket/folder or gs://bucket/folder")
    task: PrepareDeclaration = find_task(recipe.task)
    return task.put_data(prepared, address)
