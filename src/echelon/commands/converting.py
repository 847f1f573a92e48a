"""`convert openseq2seq`: an old configuration as a recipe, checked before it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from echelon.errors import UserError
from echelon.recipe.loading import check_recipe
from echelon.recipe.openseq2seq.convert import convert
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
    """The recipe that a configuration means; UserError where the file or the recipe is wrong.

    `changes` are settings of the configuration as run.py takes them: max_steps, lr_policy_params/learning_rate.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not UTF-8 text ({error.reason})") from None
    made = convert(text, str(path), workers, changes or {})
    check_recipe(made.table, f"the recipe made from {path}")
    head = f"# Made from {path.name} by `echelon convert openseq2seq`.\n"
    return Converted(head + dump_table(made.table), made.notes, made.logdir, made.infer_source)
