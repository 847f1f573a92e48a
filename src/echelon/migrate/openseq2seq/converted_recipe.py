"""`convert openseq2seq`: an old configuration as a recipe, checked before it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.data.corpora import expand, resolve
from echelon.errors import DataError, UserError
from echelon.migrate.openseq2seq.convert import convert
from echelon.recipe.loading import check_recipe
from echelon.recipe.toml import dump_table


@dataclass(frozen=True)
class Converted:
    """A recipe's text, what to know about it, and what a recipe has no place for."""

    text: str
    notes: list[str]
    logdir: str | None
    infer_source: str | None
    """The file that `--mode=infer` would translate."""


def convert_openseq2seq(
    path: Path, workers: int | None = None, changes: Mapping[str, str] | None = None
) -> Converted:
    """The recipe that a configuration means; UserError if the file or the recipe is wrong.

    `changes` are settings of the configuration as run.py takes them: max_steps, lr_policy_params/learning_rate.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error.reason})") from None
    try:
        made = convert(text, str(path), workers, changes or {})
    except RecursionError:
        raise UserError(f"{path}: has a dictionary that contains itself") from None
    _find_paths(made.table["data"])
    check_recipe(made.table, f"the recipe made from {path}")
    head = f"# Made from {path.name} by `echelon convert openseq2seq`.\n"
    source = None if made.infer_source is None else _found(made.infer_source)
    return Converted(head + dump_table(made.table), made.notes, made.logdir, source)


def _find_paths(data: dict[str, Any]) -> None:
    """Make the paths absolute: OpenSeq2Seq looked where it was started, a recipe looks where it lies itself."""
    corpora = [*data.get("train", []), data.get("valid", {}), data.get("test", {})]
    for table, keys in (
        (data, ("tokeniser", "path")),
        *((corpus, ("source", "target")) for corpus in corpora),
    ):
        table.update({key: _found(table[key]) for key in keys if key in table})


def _found(path: str) -> str:
    if "[" in path:  # a placeholder: the notes ask for the real path
        return path
    try:
        return str(resolve(path, Path.cwd()))
    except DataError:  # it may come later
        return str(Path.cwd() / expand(path))
