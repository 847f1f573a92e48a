"""docs/security.md names a test for every attack; each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PAGE = (PROJECT / "docs" / "security.md").read_text()
NAMED = re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)


def test_every_test_that_the_page_names_exists() -> None:
    assert len(NAMED) > 40
    tests = {
        (str(path.relative_to(PROJECT)), node.name)
        for path in {PROJECT / file for file, _ in NAMED}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    }
    assert [f"{file}::{name}" for file, name in NAMED if (file, name) not in tests] == []


def test_every_row_about_an_attack_names_a_test() -> None:
    tables = re.findall(r"^\| [^\n]* \| test \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(tables) >= 4
    assert [row for table in tables for row in table.splitlines() if "::test_" not in row] == []
