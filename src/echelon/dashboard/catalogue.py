"""The runs below some folders: a row for each, and their curves, as new as their records.

Rows come at once, from the ends of the records, and are completed by a thread that reads the rest. Curves of the runs
that were asked for last stay in memory; those of others are on disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echelon.dashboard.curve_cache import cache_folder, load_curves, save_curves
from echelon.dashboard.run_curves import RunCurves
from echelon.errors import EchelonError
from echelon.monitor.records import read_ends, training_records
from echelon.monitor.run_state import read_state
from echelon.monitor.scores import final_score
from echelon.recipe.tasks import TASKS, RecipeDeclaration, find_task
from echelon.recipe.toml import flat_table
from echelon.runfolder import RunFolder, RunNotes, list_runs, parse_toml, read_file

Row = dict[str, Any]
_MOST_DEPTH = 3
_MOST_IN_MEMORY = 48
"""Runs; each has one or two megabytes of curves."""
_WORTH_KEEPING_BYTES = 2**20
"""Of records: fewer are read faster than what would be kept of them."""


@dataclass
class _KnownRun:
    """What is known of one run."""

    run: RunFolder
    row: Row = field(default_factory=dict)
    seen: tuple[object, ...] = ()
    """Sizes and times of its files when the row was made."""
    settings: dict[str, str] = field(default_factory=dict)
    turn: threading.Lock = field(default_factory=threading.Lock)


class RunCatalogue:
    """All runs of a page. Any thread may ask."""

    def __init__(self, folders: Sequence[Path], hourly: float | None = None) -> None:
        self._folders, self.hourly = folders, hourly
        self._entries: dict[str, _KnownRun] = {}
        self._curves: OrderedDict[str, RunCurves] = OrderedDict()
        self._turn = threading.Lock()
        self.version = 0
        """Changes whenever a row does."""

    def find(self, key: str) -> RunFolder:
        """The run of a row; EchelonError if there is no such row."""
        return self._entry(key).run

    def _entry(self, key: str) -> _KnownRun:
        entry = self._entries.get(key)
        if entry is None:
            raise EchelonError("there is no such run here")
        return entry

    def rows(self) -> list[Row]:
        """A row for each run; those that were never read have only what the ends of their records tell."""
        self.refresh(reads=False)
        return [entry.row for entry in list(self._entries.values()) if entry.row]

    def settings(self) -> dict[str, dict[str, str]]:
        """By run, the settings of its recipe that are not the same in all runs."""
        every = {key: entry.settings for key, entry in list(self._entries.items())}
        names = {name for settings in every.values() for name in settings}
        varied = [name for name in names if len({own.get(name) for own in every.values()}) > 1]
        return {
            key: {name: own[name] for name in sorted(varied) if name in own} for key, own in every.items()
        }

    def refresh(self, *, reads: bool = True, is_stopped: threading.Event | None = None) -> None:
        """Find runs that are new or gone, and bring rows up to date; `reads`: also by reading their records."""
        found = {str(run.path): run for folder in self._folders for run in find_runs(folder)}
        with self._turn:
            if gone := [key for key in self._entries if key not in found]:
                self.version += 1
            for key in gone:
                del self._entries[key]
                self._curves.pop(key, None)
            entries = [self._entries.setdefault(key, _KnownRun(run)) for key, run in found.items()]
        for entry in sorted(entries, key=lambda each: -_changed(each.run)):
            if is_stopped is not None and is_stopped.is_set():
                return
            seen = _look(entry.run)
            if not entry.row or (reads and (seen != entry.seen or entry.row["is_partial"])):
                self._renew(entry, seen, reads=reads)

    def _renew(self, entry: _KnownRun, seen: tuple[object, ...], *, reads: bool) -> None:
        # Whoever wants what can be had at once does not wait for the thread that reads.
        if not entry.turn.acquire(blocking=reads):
            return
        try:
            if entry.row and not reads:
                return  # another thread has made the whole row meanwhile
            entry.settings = _read_settings(entry.run)
            try:
                row = self._full_row(entry) if reads else quick_row(entry.run, entry.settings)
            except EchelonError as error:
                row = _damaged_row(entry.run, str(error))
            except Exception as error:  # no run, whatever is in it, keeps the others from being shown
                row = _damaged_row(entry.run, f"cannot be read: {type(error).__name__}: {error}")
            if row != entry.row:
                entry.row = row
                self.version += 1
            entry.seen = seen
        finally:
            entry.turn.release()

    def _full_row(self, entry: _KnownRun) -> Row:
        curves = self._read(entry.run)
        return complete_row(curves, quick_row(entry.run, entry.settings, curves), self.hourly)

    def curves(self, key: str) -> RunCurves:
        """A run's curves, with everything that it has written so far."""
        entry = self._entry(key)
        with entry.turn:
            return self._read(entry.run)

    def _read(self, run: RunFolder) -> RunCurves:
        key = str(run.path)
        with self._turn:
            curves = self._curves.pop(key, None)
        before = 0 if curves is None else curves.bytes_read
        curves = curves or load_curves(cache_folder(), run)
        if curves.is_outdated():
            curves, before = RunCurves(run), 0
        curves.update()
        if curves.bytes_read - before > _WORTH_KEEPING_BYTES:
            save_curves(cache_folder(), curves)
        with self._turn:
            self._curves[key] = curves
            while len(self._curves) > _MOST_IN_MEMORY:
                self._curves.popitem(last=False)
        return curves


def find_runs(folder: Path, depth: int = _MOST_DEPTH) -> Iterator[RunFolder]:
    """The runs in a folder and below it; the folder itself if it is one."""
    if RunFolder(folder).recipe.is_file() and RunFolder(folder).checkpoints.is_dir():
        yield RunFolder(folder)
        return
    runs = list_runs(folder)
    yield from runs
    own = {run.path for run in runs}
    with contextlib.suppress(OSError):
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            path = Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            if depth > 1 and is_folder and path not in own:
                yield from find_runs(path, depth - 1)


def _look(run: RunFolder) -> tuple[object, ...]:
    """What changes when a run's row would."""
    files = [*run.records.glob("*.jsonl"), *run.scores.glob("*.json"), run.notes, run.recipe]
    return (run.is_locked(), *(_stamp(file) for file in sorted(files)))


def _stamp(file: Path) -> tuple[str, int, int]:
    try:
        found = file.stat()
    except OSError:
        return file.name, 0, 0
    return file.name, found.st_size, found.st_mtime_ns


def _changed(run: RunFolder) -> float:
    return max(_stamp(run.worker_records(0))[2], _stamp(run.recipe)[2])


def _read_settings(run: RunFolder) -> dict[str, str]:
    try:
        return flat_table(parse_toml(read_file(run.recipe).decode()))
    except (OSError, ValueError, RecursionError):
        return {}


def quick_row(run: RunFolder, settings: dict[str, str], curves: RunCurves | None = None) -> Row:
    """What the ends of a run's records tell, or its curves if it has been read."""
    if curves is None:
        records = training_records(read_ends(run.worker_records(0)))
    else:
        # Where it stands, behind the start that led there: clocks may have been set, so times have no order.
        progress = curves.progress
        standing: Row = {"kind": "step", "time": progress.written, "step": progress.step}
        records = list(curves.states)
        where = [index for index, record in enumerate(records) if record["kind"] in ("start", "step")]
        if not where or progress.step > (records[where[-1]].get("step") or 0):
            records.insert(where[-1] + 1 if where else 0, standing)
    state, test = read_state(run, records), final_score(run, records)
    task: RecipeDeclaration | None = find_task(name) if (name := settings.get("task", "")) in TASKS else None
    notes = RunNotes.read(run)
    return {
        "id": str(run.path),
        "name": run.name,
        "folder": str(run.path.parent),
        "state": state.name,
        "step": state.step,
        "steps": state.steps,
        "last_change": state.as_of,
        "task": name,
        "unit": task.unit if task else "targets",
        "metrics": {score.key: score.name for score in task.scores} if task else {},
        "test": test.metrics if test else {},
        "validation": {},
        "loss": None,
        "speed": None,
        "cost": None,
        "host_hours": None,
        "seconds": None,
        "hosts": None,
        "workers": None,
        "began": None,
        "tags": list(notes.tags),
        "note": notes.note,
        "problem": "",
        "is_partial": curves is None,
    }


def complete_row(curves: RunCurves, row: Row, hourly: float | None) -> Row:
    """A row with what only the whole records tell."""
    progress = curves.progress
    hours = progress.total_host_seconds() / 3600
    return row | {
        "validation": {key: {"value": value, "step": step} for key, (value, step) in curves.best.items()},
        "loss": curves.last_loss(),
        "speed": curves.targets_per_second(),
        "cost": None if hourly is None else hourly * hours,
        "host_hours": hours,
        "seconds": progress.ledger.training,
        "hosts": progress.hosts,
        "workers": progress.workers,
        "began": progress.began,
    }


def _damaged_row(run: RunFolder, problem: str) -> Row:
    empty = {
        "id": str(run.path),
        "name": run.name,
        "folder": str(run.path.parent),
        "state": "damaged",
        "problem": problem,
        "is_partial": False,
    }
    return (
        dict.fromkeys(_ROW_KEYS)
        | {"metrics": {}, "test": {}, "validation": {}, "tags": [], "note": ""}
        | empty
    )


_ROW_KEYS = (
    *("step", "steps", "last_change", "task", "unit", "loss", "speed", "cost", "host_hours", "seconds"),
    *("hosts", "workers", "began"),
)
