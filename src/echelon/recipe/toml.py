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
    """Every setting by its full key, as `--set` takes it: `train.steps`."""
    return _flatten(recipe.model_dump(), "")


def _flatten(value: Any, key: str) -> dict[str, str]:
    if not isinstance(value, dict):
        return {key: str(value)}
    flat: dict[str, str] = {}
    for name, entry in value.items():
        flat |= _flatten(entry, f"{key}.{name}" if key else name)
    return flat
