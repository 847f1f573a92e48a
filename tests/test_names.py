"""One name, one thing: no type, no file and no folder of the package shares its name with another."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "echelon"
FILES = sorted(SOURCE.rglob("*.py"))
VERBS = {path.stem for path in (SOURCE / "cli").glob("*.py")}
SIDES_OF_A_VERB = {"cli", "commands", "explain"}
"""A verb's files have its name: its flags in cli, its work in commands, and what it shows in explain."""
PARALLEL = (
    {"shapes", "models"},
    {"data", "data/images"},
    {"declarations", "tasks"},
)
"""Packages that hold two sides of the same things."""
TABLES = {
    "recipe/tasks": "tasks",  # the table of what that package holds
    "resolve/exchange": "train/exchange",  # which of what that package holds a run has
}


def types_of(tree: ast.Module) -> Iterator[str]:
    """The classes of a module, and what it calls other types; not its type variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(name)], value=value) if re.match("[A-Z]+[a-z]", name):
                if not ast.unparse(value).startswith(("TypeVar(", "ParamSpec(")):
                    yield name


def test_no_type_name_stands_for_two_things() -> None:
    """Nor does a private one: a reader sees `_Message` and thinks of `Message`."""
    places = defaultdict(list)
    for path in FILES:
        for name in types_of(ast.parse(path.read_text())):
            places[name.lstrip("_")].append(str(path.relative_to(SOURCE)))
    shared = {name: files for name, files in places.items() if len(files) > 1}
    assert shared == {}


def test_aliases_and_private_classes_are_types() -> None:
    tree = ast.parse(
        'class _A: ...\nPair = tuple[int, int]\nT = TypeVar("T")\nItem = TypeVar("Item")\nMOST = 3'
    )
    assert list(types_of(tree)) == ["_A", "Pair"]


def test_no_file_name_stands_for_two_things() -> None:
    folders = defaultdict(set)
    for path in FILES:
        if not path.stem.startswith("__"):
            folders[path.stem].add(str(path.parent.relative_to(SOURCE)))
    shared = {
        name: sorted(found)
        for name, where in folders.items()
        if len(found := where - SIDES_OF_A_VERB if name in VERBS else where) > 1 and found not in PARALLEL
    }
    assert shared == {}


def test_no_file_has_the_name_of_another_folder() -> None:
    """A package's main file may have the package's name, and a verb's files that of what does the work."""
    folders = {str(path.parent.relative_to(SOURCE)) for path in FILES}
    by_name = defaultdict(set)
    for folder in folders:
        by_name[folder.rpartition("/")[2]].add(folder)
    files = {str(path.relative_to(SOURCE).with_suffix("")) for path in FILES}
    shared = {
        file: sorted(by_name[name])
        for file in files
        for parent, _, name in [file.rpartition("/")]
        if name in by_name and parent not in by_name[name] and TABLES.get(file) not in by_name[name]
        if not (name in VERBS and parent in SIDES_OF_A_VERB)
    }
    assert shared == {}
