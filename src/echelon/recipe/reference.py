"""The reference page of recipes, generated from the docstrings of the schema."""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from echelon.recipe.keys import sections_in
from echelon.recipe.section import Section
from echelon.recipe.tasks import DEFAULT_TASK, TASKS, recipe_type

_PREAMBLE = """\
# Recipe reference

Generated from the schema by `make docs`; do not edit. A recipe is a TOML file; every key can be overridden on
the command line with `--set`, e.g. `--set train.steps=100` or `--set data.train.0.weight=2.0`; with nothing
after the `=`, as in `--set train.clip_norm=`, the key is left out.

A recipe's `task` is `"translation"`, which the first part describes, or `"classification"` of images, for which the
tables under [Classification](#classification) take the place of those of the same name, or the import path of a task of
your own ([own-parts.md](own-parts.md)), which has the tables under [Your own](#your-own).
"""
_OWN = "package.module:Name"
_OTHER_TASK = """\
# {title}

If `task = "{task}"`. Optimisers, schedules and the tables that are not here are those above.
"""


def reference_page() -> str:
    """docs/recipe.md as Markdown: the default task's tables, then those of each other task that differ from them."""
    tables = tables_of(recipe_type(DEFAULT_TASK))
    known = set(tables)
    page = [_PREAMBLE, *(_table(path, section) for section, path in tables.items())]
    for task, title in {**{name: name.capitalize() for name in TASKS}, _OWN: "Your own"}.items():
        own = {
            section: path for section, path in tables_of(recipe_type(task)).items() if section not in known
        }
        if own:
            top = f"The top of a {task} recipe" if task in TASKS else "The top of such a recipe"
            page += [_OTHER_TASK.format(title=title, task=task)]
            page += [_table(path, section, top) for section, path in own.items()]
    return "\n".join(page)


def tables_of(recipe: type[Section]) -> dict[type[Section], str]:
    """Every table of a recipe, in order of the schema, with its place: `data.train[]`, `schedule, kind = "cosine"`."""
    found: dict[type[Section], str] = {recipe: ""}
    for section, path in _tables_below(recipe, ""):
        found[section] = f"{found[section]}, {path}" if section in found else path
    return found


def _tables_below(section: type[Section], prefix: str) -> Iterator[tuple[type[Section], str]]:
    for name, field in section.model_fields.items():
        below = sections_in(field.annotation)
        mark = "[]" if typing.get_origin(field.annotation) is list else ""
        for kind in below:
            tag = f', kind = "{_tag(kind)}"' if len(below) > 1 else ""
            yield kind, f"{prefix}{name}{mark}{tag}"
        for kind in below:
            yield from _tables_below(kind, f"{prefix}{name}{mark}.")


def _tag(kind: type[Section]) -> str:
    return str(typing.get_args(kind.model_fields["kind"].annotation)[0])


def _table(path: str, section: type[Section], top: str = "The top of the file") -> str:
    title = f"## `{path}`" if path else f"## {top}"
    rows = [_row(name, field) for name, field in section.model_fields.items()]
    return "\n".join(
        [
            title,
            "",
            _one_line(section.__doc__ or ""),
            "",
            "| key | value | default | meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _row(name: str, field: FieldInfo) -> str:
    return f"| `{name}` | {_kind(field)} | {_default(field)} | {_one_line(field.description or '')} |"


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _kind(field: FieldInfo) -> str:
    words = [_kind_of(kind) for kind in _alternatives(field.annotation)]
    return ", ".join(dict.fromkeys(word for word in words if word))


def _alternatives(annotation: object) -> list[object]:
    arguments = typing.get_args(annotation)
    is_choice = typing.get_origin(annotation) in (typing.Literal, list)
    if not arguments or is_choice:
        return [annotation]
    return [kind for argument in arguments for kind in _alternatives(argument)]


def _kind_of(kind: object) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice!r}`".replace("'", '"') for choice in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return f"list of {_kind_of(_alternatives(typing.get_args(kind)[0])[0])}s"
    if isinstance(kind, type) and issubclass(kind, Section):
        return "table"
    names = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}
    return names.get(kind, "") if isinstance(kind, type) else ""


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "needed"
    if field.default is None or isinstance(field.default, Section) or field.default == []:
        return ""
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default!r}`".replace("'", '"')


if __name__ == "__main__":
    sys.stdout.write(reference_page())
