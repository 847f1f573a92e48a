"""A search on disk: its files, its lock, and what must be the same when it is resumed.

DIR/
  search.json      the recipe, what varies, and the rules; written once
  search.jsonl     the trials, their results and failures; see trials.py
  search.lock      held while the search is being made
  best.toml        the recipe with the best settings so far
  trial-00/ ...    a run for each trial; see runfolder.py
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.errors import RunError
from echelon.monitor.records import read_records
from echelon.recipe.compatibility import changed_keys
from echelon.recipe.schema import Recipe
from echelon.runfolder import LOOK_S, RunFolder, open_no_link, read_json, take_lock, write_json
from echelon.search.trials import Trial, trials_in
from echelon.search.varied_keys import VariedKey, is_setting_of

_MAY_CHANGE = ("train.workers", "train.log_every", "restart", "track")
"""Keys of the recipe that may differ from one start to the next: they change no result."""


@dataclass(frozen=True)
class SearchRules:
    """What a search was begun with, and keeps."""

    recipe: dict[str, Any]
    varied: list[str]
    """As `--vary` says it, sorted."""
    factor: int
    rungs: int


class SearchFolder:
    """The folder of one search."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rules = path / "search.json"
        self.records = path / "search.jsonl"
        self.lock_file = path / "search.lock"
        self.best = path / "best.toml"

    def run(self, trial: Trial) -> RunFolder:
        """The run of a trial."""
        return RunFolder(self.path / trial.name)

    def trials(self, varied: Sequence[VariedKey]) -> list[Trial]:
        """The trials so far; RunError if their file has others than those of this space.

        Their values go into commands, and the folder may be anybody's.
        """
        found = trials_in(read_records(self.records))
        if [trial.number for trial in found] != list(range(len(found))) or not all(
            is_setting_of(varied, trial.values) and min(trial.every, *trial.rungs) > 0 for trial in found
        ):
            raise RunError(f"{self.records}: has trials that are not of this search; name another --folder")
        return found

    def create(self) -> None:
        """Make the folder if it is missing; RunError if something else is there."""
        if self.path.exists() and not self.rules.exists() and any(self.path.iterdir()):
            raise RunError(f"{self.path}: has something else in it; name another folder with --folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot be made: {error.strerror}; name another with --folder"
            ) from None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other starts of this search out; the operating system releases it when this process ends."""
        try:
            descriptor = open_no_link(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except OSError as error:
            raise RunError(f"{self.lock_file}: cannot be used as a lock: {error.strerror}") from None
        try:
            if not take_lock(descriptor, fcntl.LOCK_EX, LOOK_S):
                raise RunError(f"{self.path}: this search is being made already, by another process")
            yield
        finally:
            os.close(descriptor)

    def read_rules(self) -> SearchRules | None:
        """What the search was begun with; None if it is new."""
        try:
            match read_json(self.rules):
                case {
                    "recipe": dict(recipe),
                    "varied": list(varied),
                    "factor": int(factor),
                    "rungs": int(rungs),
                }:
                    return SearchRules(recipe, list(map(str, varied)), factor, rungs)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            pass
        raise RunError(f"{self.rules}: is damaged, so nobody knows what was searched; name another --folder")

    def write_rules(self, rules: SearchRules) -> None:
        """Keep them for the next start."""
        write_json(self.rules, vars(rules))


def refuse_other_search(folder: Path, before: SearchRules, recipe: Recipe, varied: Sequence[str]) -> None:
    """RunError if a search is resumed with another recipe or another space."""
    changes = [f"--vary {text} is new" for text in varied if text not in before.varied]
    changes += [f"--vary {text} is missing" for text in before.varied if text not in varied]
    if changed := changes_of(before, recipe):
        changes.append(f"the recipe has another {', '.join(changed)}")
    if changes:
        raise RunError(
            f"{folder}: was begun otherwise: {'; '.join(changes)}. Undo that to resume it, or begin another search "
            "with --folder"
        )


def changes_of(before: SearchRules, recipe: Recipe) -> list[str]:
    """Keys of the recipe that are not as they were, but for those that change no result."""
    return [
        key
        for key in changed_keys(before.recipe, recipe_table(recipe))
        if not any(key == free or key.startswith(f"{free}.") for free in _MAY_CHANGE)
    ]


def recipe_table(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON has it."""
    return recipe.model_dump(mode="json")
