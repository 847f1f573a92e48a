"""Recipes built in Python."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from echelon.recipe.loading import allow_named, check_recipe
from echelon.recipe.loading import load_recipe as read_recipe
from echelon.recipe.own_code import allow, paths_in
from echelon.recipe.schema import SCHEMA_VERSION, Recipe
from echelon.recipe.section import Section


def load_recipe(path: str | Path, settings: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in a TOML file, changed by settings such as `{"train.steps": 100}`.

    Raises RecipeError with every problem found, UserError if the file cannot be read.
    """
    allow_named(Path(path))
    allow(paths_in(dict(settings or {})))
    return read_recipe(Path(path), as_overrides(settings or {}))


def allow_code(*paths: str) -> None:
    """Let code of your own be imported, `package.module:name`, though only a run's folder names it."""
    allow(paths)


def make_recipe(**tables: Any) -> Recipe:
    """A recipe built in Python, with the keys and tables of its file: `name="mine", train={"steps": 100}, ...`.

    Raises RecipeError with every problem found.
    """
    table = {"version": SCHEMA_VERSION, **{key: _as_table(value) for key, value in tables.items()}}
    allow(paths_in(table))
    return check_recipe(table, where=f"recipe {table.get('name', '')}".strip())


def _as_table(value: Any) -> Any:
    """A value of Python as TOML would have it: sections as tables, tuples as lists, without what is None."""
    match value:
        case Section():
            return value.model_dump(exclude_none=True)
        case Mapping():
            return {str(key): _as_table(inner) for key, inner in value.items() if inner is not None}
        case list() | tuple():
            return [_as_table(inner) for inner in value]
        case Path():
            return str(value)
    return value


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Settings by their dotted keys, as `--set` takes them; None takes a key out."""
    return [f"{key}={_as_toml(value)}" for key, value in settings.items()]


def _as_toml(value: Any) -> str:
    """A value of a recipe, on one line."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case list() | tuple():
            return f"[{', '.join(map(_as_toml, value))}]"
        case Mapping():
            return f"{{{', '.join(f'{json.dumps(str(key))} = {_as_toml(inner)}' for key, inner in value.items())}}}"
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False)
    return repr(value)
