"""tools/measure_source.py counts what it says it counts."""

from __future__ import annotations

from pathlib import Path

from tools.measure_source import (
    SOURCE,
    count_lines,
    longest_files,
    longest_functions,
    many_parameters,
    read_modules,
    used_once,
)

MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 500, 60
LONG_FILES = {"recipe/schema.py"}
"""A list of keys, each with its text for the reference page."""

_TEXT = '''"""A module."""

# Why it is so.
LIMIT = 3
"""Of what."""


def shown(a, b, c, d, e, f, g):
    """A function
    with two lines of docstring."""
    return _once(a)  # not a line of its own


def _once(a):
    return a
'''


def test_a_module_is_measured(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(_TEXT)
    modules = read_modules(tmp_path)
    counted = {"files": 1, "lines": 15, "blank": 5, "docstrings": 4, "comment lines": 1, "functions": 2}
    assert count_lines(modules) == counted
    assert longest_functions(modules)[0] == (4, "module.py:8 shown")
    assert many_parameters(modules) == [(7, "module.py:8 shown")]
    assert used_once(modules) == ["module.py:14 _once"]


def test_files_and_functions_are_short() -> None:
    modules = read_modules(SOURCE)
    assert {name for lines, name in longest_files(modules) if lines > MOST_LINES_OF_A_FILE} <= LONG_FILES
    assert [each for each in longest_functions(modules) if each[0] > MOST_LINES_OF_A_FUNCTION] == []
