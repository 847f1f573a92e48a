"""A run's measurements as columns: plain lists, or a data frame of pandas or polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from echelon.errors import UserError
from echelon.monitor.records import is_number

TableForm = Literal["columns", "pandas", "polars"]


def as_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """A list for every number that the records have, None if a record lacks it; `step` comes first."""
    names = dict.fromkeys(
        ["step", *(name for record in records for name, value in record.items() if is_number(value))]
    )
    return {
        name: [record.get(name) if is_number(record.get(name)) else None for record in records]
        for name in names
    }


def as_form(columns: dict[str, list[float | None]], form: TableForm) -> Any:
    """The columns themselves, or a data frame of them; UserError if its package is not installed."""
    if form == "columns":
        return columns
    if form not in ("pandas", "polars"):
        raise UserError(f'form = {form!r} is not known; use "columns", "pandas" or "polars"')
    from importlib import import_module

    try:
        package = import_module(form)
    except ImportError:
        raise UserError(f"this needs {form}; `pip install {form}` installs it") from None
    return package.DataFrame(columns)
