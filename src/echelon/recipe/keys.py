"""The keys that recipes have, dotted as `--set` takes them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from functools import cache
from typing import Any

from echelon.recipe.section import Section
from echelon.recipe.tasks import TASKS, recipe_type


@cache
def recipe_keys() -> tuple[str, ...]:
    """The keys of the recipes of all tasks, in order of the schema; entries of lists are not among them."""
    return tuple(dict.fromkeys(key for task in TASKS for key in _keys_below(recipe_type(task), "")))


def keys_called(name: str) -> list[str]:
    """The keys that end in `name`: what a user means who leaves out the table."""
    return [key for key in recipe_keys() if key.rpartition(".")[2] == name]


def _keys_below(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        below = sections_in(field.annotation)
        if not below:
            yield f"{prefix}{name}"
        elif typing.get_origin(field.annotation) is not list:
            for kind in below:
                yield from _keys_below(kind, f"{prefix}{name}.")


def sections_in(annotation: Any) -> list[type[Section]]:
    """The tables inside an annotation: optional, list, union and Annotated are looked through."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, list, typing.Annotated):
        return [section for argument in typing.get_args(annotation) for section in sections_in(argument)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Section) else []
