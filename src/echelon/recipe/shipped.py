"""Recipes that come with Echelon: package data, so every way of installing it brings them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from pathlib import Path

from echelon.errors import UserError

FOLDER = Path(__file__).parents[1] / "recipes"


def find_recipe(name: str) -> Path:
    """Return the file of a shipped recipe, `demo` for demo.toml."""
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        raise UserError(f"{path} is missing; install Echelon again")
    return path


def suggest_shipped(path: Path) -> str:
    """Return the end of the error for a missing recipe: where Echelon keeps the one of that name, if it has one.

    The documentation writes recipes/demo.toml, which only a checkout has.
    """
    shipped = FOLDER / (path.name if path.suffix else f"{path.name}.toml")
    if shipped.is_file():
        return f"; the one that comes with Echelon is {shipped}"
    near = difflib.get_close_matches(path.name, [file.name for file in _recipes_near(path)], n=1)
    return f"; did you mean {path.with_name(near[0])}?" if near else ""


def _recipes_near(path: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from path.parent.glob("*.toml")
