"""The files that Echelon consists of: they are sent to hosts, and hosts are compared by them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import echelon

FOLDER = Path(echelon.__file__).parent


def list_files(folder: Path = FOLDER) -> list[str]:
    """Return the names of the package's files, sorted and relative to its folder, with / between the parts.

    Bytecode and hidden files are not part of it, nor is what lies beside the recipes: a recipe's relative paths
    start there, so it may be a user's data.
    """
    names = list[str]()
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        is_recipes = inside == Path("recipes")
        folders[:] = [] if is_recipes else [name for name in folders if _is_ours(name)]
        names += [
            (inside / name).as_posix()
            for name in files
            if _is_ours(name) and (name.endswith(".toml") or not is_recipes)
        ]
    return sorted(names)


def _is_ours(name: str) -> bool:
    return name != "__pycache__" and not name.startswith(".")


def source_digest(folder: Path = FOLDER) -> str:
    """Return the beginning of a SHA-256 over the names and the content of all files."""
    digest = hashlib.sha256()
    for name in list_files(folder):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256((folder / name).read_bytes()).digest())
    return digest.hexdigest()[:12]
