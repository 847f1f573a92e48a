"""The settings of a configuration while they are turned into a recipe: what was used, and what has no equivalent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echelon.errors import UserError
from echelon.recipe.openseq2seq.syntax import Named, Table


class Settings:
    """A table of the configuration. A key that nobody asks for ends up in the notes."""

    def __init__(self, table: Table, where: str, place: str = "") -> None:
        self._table = table
        self._where = where
        self._place = place
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def get(self, key: str, default: Any = None) -> Any:
        """The value, which counts as used."""
        self._asked.add(key)
        return self._table.get(key, default)

    def number(self, key: str, default: Any = None) -> Any:
        """As `get`; UserError where it is given and no number."""
        value = self.get(key, default)
        if key in self._table and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise self.error(key, f"is {value!r}, not a number")
        return value

    def text(self, key: str) -> str | None:
        """As `get`; UserError where it is given and no text."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"is {value!r}, not a text")
        return value

    def name(self, key: str) -> str:
        """The name of a class or function, or of a text in its place; empty where it is not given."""
        value = self.get(key)
        return value.name if isinstance(value, Named) else str(value or "")

    def inner(self, key: str) -> Settings:
        """The table under a key; an empty one where it is not given."""
        value = self.get(key)
        if value is not None and not isinstance(value, Table):
            raise self.error(key, "is not a dictionary")
        return Settings(value or Table(), self._where, f"{self._place}{key}.")

    def error(self, key: str, message: str) -> UserError:
        line = self._table.lines.get(key)
        where = f"{self._where}:{line}" if line else self._where
        return UserError(f"{where}: {self._place}{key} {message}")

    def note(self, key: str, message: str) -> str:
        """A line about a key for the user."""
        line = self._table.lines.get(key)
        return f"line {line}: {self._place}{key} {message}" if line else f"{self._place}{key} {message}"

    def left_over(self, reasons: Mapping[str, str]) -> list[str]:
        """What has no place in a recipe, with the reason; a key that we don't know is said to be unknown."""
        unknown = "is not known to this converter, and left out"
        return [
            self.note(key, reasons.get(key, unknown))
            for key in self._table
            if key not in self._asked and reasons.get(key) != ""
        ]


def merged(base: Table, own: Table) -> Table:
    """The base with a mode's own settings in place of its, table by table."""
    result = Table()
    for table in (base, own):
        for key, value in table.items():
            both = isinstance(value, Table) and isinstance(result.get(key), Table)
            result.put(key, merged(result[key], value) if both else value, table.lines[key])
    return result
