"""Writing a recipe back as TOML, so that a run's resolved recipe is a file a user can copy and edit; or key by key."""

from __future__ import annotations

from typing import Any

import tomli_w

from echelon.recipe.schema import Recipe


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as TOML that `load_recipe` reads back to an equal one."""
    return dump_table(recipe.model_dump(exclude_none=True))


def dump_table(table: dict[str, Any]) -> str:
    """A recipe's table as TOML."""
    return tomli_w.dumps(table)


def flat_settings(recipe: Recipe) -> dict[str, str]:
    """Every setting by its full key, as `--set` takes it: `train.steps`, `data.train.0.source`."""
    return flat_table(recipe.model_dump())


def flat_table(table: dict[str, Any]) -> dict[str, str]:
    """The same for a table as it is read from TOML."""
    return _flatten(table, "")


def _flatten(value: Any, key: str) -> dict[str, str]:
    entries: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        entries = list(enumerate(value))
    else:
        return {key: str(value).lower() if isinstance(value, bool) else str(value)}
    flat: dict[str, str] = {}
    for name, entry in entries:
        flat |= _flatten(entry, f"{key}.{name}" if key else name)
    return flat
