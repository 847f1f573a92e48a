"""The sets given to `evaluate` on the command line: parallel files, or folders of images, each with a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from echelon.data.corpora import FilePair, PairFile, ParallelText
from echelon.data.formats import PAIR_READERS
from echelon.data.streams import FileLocation
from echelon.errors import UserError
from echelon.recipe.schema import Recipe, TranslationRecipe
from echelon.recipe.tasks import find_task

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OWN_SPLITS = ("valid", "test")
"""Names that the scores of the recipe's own sets are kept by."""


@dataclass(frozen=True)
class GivenSet:
    """A set to score, and the name under which its scores are stored."""

    name: str
    files: tuple[Path, ...]
    """A source and a target file, or one file with both, or a folder of images."""

    def text(self, recipe: TranslationRecipe) -> ParallelText:
        """The lines of parallel files."""
        places = [FileLocation(file) for file in self.files]
        if len(places) == 2:
            return FilePair(self.name, *places)
        languages = (recipe.data.source_language, recipe.data.target_language)
        return PairFile(self.name, places[0], (1, 2), languages)


class SetsDeclaration(Protocol):
    """What a task says about the sets that it can score."""

    def refuse_sets(self, options: SetOptions) -> None:
        """UserError if what is given is not what the task scores."""
        ...


@dataclass(frozen=True)
class SetOptions:
    """The options that name sets other than the run's own."""

    source: Path | None = None
    target: Path | None = None
    name: str | None = None
    tests: Sequence[str] = ()
    """NAME=SOURCE,TARGET or NAME=PAIRS"""
    images: Sequence[str] = ()
    """FOLDER or NAME=FOLDER"""

    def sets(self, recipe: Recipe) -> list[GivenSet]:
        """The sets, none if the run's own are meant; UserError if they cannot be scored by a run of this recipe."""
        task: SetsDeclaration = find_task(recipe.task)
        task.refuse_sets(self)
        found = [*self._pair(), *map(_parse_test, self.tests), *map(_parse_images, self.images)]
        if self.name is not None and (len(found) != 1 or self.tests):
            raise UserError("--name is for one set that is given by --source and --target, or by --images")
        if self.name is not None:
            found = [GivenSet(self.name, found[0].files)]
        _check(found)
        return found

    @property
    def has_text(self) -> bool:
        """Whether parallel files are given."""
        return bool(self.source or self.target or self.tests)

    def _pair(self) -> list[GivenSet]:
        if self.source is None and self.target is None:
            return []
        if self.source is None or self.target is None:
            raise UserError(
                "--source and --target go together: the lines to translate, and their translations"
            )
        return [GivenSet(_name_of(self.source), (self.source, self.target))]


def _parse_test(text: str) -> GivenSet:
    name, is_named, files = text.partition("=") if "=" in text else ("", "", text)
    paths = tuple(map(Path, files.split(",")))
    if not is_named and paths[0].name:
        name = _name_of(paths[0])
    if not name or not files or len(paths) > 2:
        raise UserError(
            f"--test {text}: write it as NAME=SOURCE,TARGET or NAME=PAIRS, e.g. news=news.en,news.de"
        )
    if len(paths) == 1 and FileLocation(paths[0]).text_suffix not in PAIR_READERS:
        endings = ", ".join(PAIR_READERS)
        raise UserError(f"--test {text}: one file holds both sides only if its name ends in one of {endings}")
    return GivenSet(name, paths)


def _parse_images(text: str) -> GivenSet:
    name, is_named, folder = text.partition("=")
    path = Path(folder if is_named else text)
    return GivenSet(name if is_named else _allowed(path.absolute().name), (path,))


def _name_of(file: Path) -> str:
    """A file's name without its language suffix; the whole name if that is one of the run's own sets."""
    name = _allowed(file.name)
    short = name.split(".")[0]
    return name if short in _OWN_SPLITS else short


def _allowed(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-") or "set"


def _check(sets: Sequence[GivenSet]) -> None:
    for given in sets:
        if not _NAME.fullmatch(given.name) or given.name in _OWN_SPLITS:
            raise UserError(
                f"{given.name!r} cannot be the name of a set: use letters, digits, dots and dashes, and neither valid "
                "nor test, which are the run's own; --name gives it another"
            )
        if [other.name for other in sets].count(given.name) > 1:
            raise UserError(
                f"two sets are called {given.name}, and their scores are kept by name; use other names"
            )
        for file in given.files:
            if not file.exists():
                raise UserError(f"{file} does not exist")
