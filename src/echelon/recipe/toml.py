"""Writing a recipe back as TOML, so that a run's resolved recipe is a file a user can copy and edit; or key by key."""

from __future__ import annotations

import json
from typing import Any

from echelon.recipe.schema import Recipe


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe, defaults included, as TOML that `load_recipe` reads back to an equal one."""
    return dump_table(recipe.model_dump(exclude_none=True))


def dump_table(table: dict[str, Any]) -> str:
    """A recipe's table as TOML."""
    return "\n".join(_table_lines("", table)).strip() + "\n"


def flat_settings(recipe: Recipe) -> dict[str, str]:
    """Every setting by its full key, as `--set` takes it: `train.steps`."""
    return _flatten(recipe.model_dump(), "")


def _flatten(value: Any, key: str) -> dict[str, str]:
    if not _is_table(value):
        return {key: str(value)}
    flat: dict[str, str] = {}
    for name, entry in value.items():
        flat |= _flatten(entry, f"{key}.{name}" if key else name)
    return flat


def _table_lines(name: str, table: dict[str, Any]) -> list[str]:
    plain = {key: value for key, value in table.items() if not _is_table(value) and not _is_table_list(value)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        path = f"{name}.{key}" if name else key
        if _is_table(value):
            lines += ["", f"[{path}]", *_table_lines(path, value)]
        elif _is_table_list(value):
            for entry in value:
                lines += ["", f"[[{path}]]", *_table_lines(path, entry)]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_table_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(entry) for entry in value)}]"
    return repr(value)


def _string(text: str) -> str:
    """A TOML basic string: JSON's escapes are TOML's too, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
