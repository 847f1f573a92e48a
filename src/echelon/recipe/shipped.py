"""Recipes that come with Echelon: package data, so every way of installing it brings them."""

from __future__ import annotations

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
    return f"; the one that comes with Echelon is {shipped}" if shipped.is_file() else ""
