"""One name, one thing: no class and no file of the package shares its name with another."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "echelon"
FILES = sorted(SOURCE.rglob("*.py"))
VERBS = {path.stem for path in (SOURCE / "cli").glob("*.py")}
"""A verb's files have its name: its flags in cli, its work in commands, and what it shows in explain."""
PARALLEL = (
    {"shapes", "models"},
    {"data", "data/images"},
    {"declarations", "tasks"},
)
"""Packages that hold two sides of the same things."""


def test_no_class_name_stands_for_two_things() -> None:
    places = defaultdict(list)
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(SOURCE)))
    shared = {name: files for name, files in places.items() if len(files) > 1}
    assert shared == {}


def test_no_file_name_stands_for_two_things() -> None:
    folders = defaultdict(set)
    for path in FILES:
        if not path.stem.startswith("__"):
            folders[path.stem].add(str(path.parent.relative_to(SOURCE)))
    shared = {
        name: sorted(where)
        for name, where in folders.items()
        if len(where) > 1 and name not in VERBS and where not in PARALLEL
    }
    assert shared == {}
