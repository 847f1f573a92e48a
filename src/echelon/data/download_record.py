"""The record of files fetched into a folder: fetched.json, extended at each file's first fetch."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from echelon.runfolder import read_json

FETCHED = "fetched.json"


def first_fetches(folder: Path) -> dict[str, Any]:
    """Size, SHA-256 and origin of the files that were fetched into a folder, by name."""
    with suppress(OSError, ValueError):
        known = read_json(folder / FETCHED)
        return known if isinstance(known, dict) else {}
    return {}


def how_to_fetch_again(path: Path) -> str:
    """How to fetch a file again: files that are there are kept, and their first fetch is recorded."""
    for folder in path.parents:
        if path.relative_to(folder).as_posix() in first_fetches(folder):
            return f"to fetch it again, remove {path} and its entry in {folder / FETCHED}"
    return "fetch it again"
