"""What is known of the files that were fetched into a folder: fetched.json, written at each one's first fetch."""

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
    """What a user does to have a file fetched anew: what is there is kept, and its first fetch remembered."""
    for folder in path.parents:
        if path.relative_to(folder).as_posix() in first_fetches(folder):
            return f"to fetch it again, remove {path} and its entry in {folder / FETCHED}"
    return "fetch it again"
