"""The settings of a configuration while they are turned into a recipe: what was used, and what has no equivalent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from echelon.errors import UserError
from echelon.migrate.openseq2seq.syntax import Named, Table, Unread

LARGEST_NUMBER = 1e18
"""Nothing in a configuration counts that far; what is larger, or no number at all, is a mistake."""


class Settings:
    """A table of the configuration. A key that is never read ends up in the notes."""

    def __init__(self, table: Table, where: str, place: str = "") -> None:
        self._table = table
        self._where = where
        self._place = place
        self._asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, which counts as used; None is as good as not given. UserError if it cannot be read."""
        self._asked.add(key)
        value = self._table.get(key)
        if isinstance(value, Unread):
            raise value.problem
        return default if value is None else value

    def number(self, key: str, default: Any = None) -> Any:
        """Like `get`; UserError if it is given and not a number."""
        value = self.get(key, default)
        if value is not None and not _is_number(value):
            raise self.error(key, f"is {value!r}, not a number")
        return value

    def count(self, key: str, default: int) -> int:
        """Like `number`; UserError if it is below 1."""
        value = self.number(key, default)
        if value < 1:
            raise self.error(key, f"is {value}; give 1 or more")
        return int(value)

    def numbers(self, key: str) -> list[Any]:
        """A list of numbers, empty if it is not given; UserError if it is something else."""
        values = self.get(key, [])
        if not isinstance(values, list | tuple) or not all(map(_is_number, values)):
            raise self.error(key, f"is {values!r}, not a list of numbers")
        return list(values)

    def text(self, key: str) -> str | None:
        """Like `get`; UserError if it is given and not text."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, f"is {value!r}, not a text")
        return value

    def name(self, key: str) -> str:
        """The name of a class or function, or of a text in its place; empty if it is not given."""
        value = self.get(key)
        return value.name if isinstance(value, Named) else str(value or "")

    def inner(self, key: str) -> Settings:
        """The table under a key; an empty one if it is not given."""
        value = self.get(key)
        if value is not None and not isinstance(value, Table):
            raise self.error(key, "is not a dictionary")
        return Settings(value or Table(), self._where, f"{self._place}{key}.")

    def require_part(self, key: str, expected: str) -> None:
        """UserError if a part of the model is not the one that has an equivalent."""
        if self.name(key) != expected:
            raise self.error(key, f"is {self.name(key) or 'missing'}; only {expected} has an equivalent")

    def error(self, key: str, message: str) -> UserError:
        line = self._table.lines.get(key)
        where = f"{self._where}:{line}" if line else self._where
        return UserError(f"{where}: {self._place}{key} {message}")

    def note(self, key: str, message: str) -> str:
        """A line about a key for the user."""
        line = self._table.lines.get(key)
        return f"line {line}: {self._place}{key} {message}" if line else f"{self._place}{key} {message}"

    def left_over(self, reasons: Mapping[str, str], silent: Collection[str] = ()) -> list[str]:
        """What has no place in a recipe, with the reason; a key that we don't know is said to be unknown.

        `silent` are keys that make no difference to the training, so that nothing is lost with them.
        """
        unknown = "is not known to this converter, and left out"
        return [
            self.note(key, reasons.get(key, unknown))
            for key in self._table
            if key not in self._asked and key not in silent
        ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def merged(base: Table, own: Table) -> Table:
    """The base with a mode's own settings in place of its, table by table."""
    result = Table()
    for table in (base, own):
        for key, value in table.items():
            both = isinstance(value, Table) and isinstance(result.get(key), Table)
            result.put(key, merged(result[key], value) if both else value, table.lines[key])
    return result


def differing(own: Table, base: Table, place: str) -> Iterator[tuple[str, str, int]]:
    """What a mode sets to something else than `base`, table by table: place, key and line."""
    for key, value in own.items():
        other = base.get(key)
        if isinstance(value, Table) and isinstance(other, Table):
            yield from differing(value, other, f"{place}{key}.")
        elif value != other:
            yield place, key, own.lines[key]
