"""The reference page: complete, up to date, and generated from docstrings that are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from echelon.recipe import image_sections, schema
from echelon.recipe.reference import reference_page
from echelon.recipe.section import Evaluation, Section

PAGE = Path(__file__).parents[2] / "docs" / "recipe.md"


NOT_TABLES = (Section, schema.Recipe, schema.Train, Evaluation)
"""What tables have in common."""


def sections() -> list[type[Section]]:
    found = {**vars(schema), **vars(image_sections)}
    return [
        value
        for value in found.values()
        if isinstance(value, type) and issubclass(value, Section) and value not in NOT_TABLES
    ]


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.__name__)
def test_every_section_and_every_field_is_documented(section: type[Section]) -> None:
    assert section.__doc__
    undocumented = [
        name for name, field in section.model_fields.items() if not (field.description or "").strip()
    ]
    assert undocumented == []


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.__name__)
def test_every_section_is_on_the_page_with_all_its_keys(section: type[Section]) -> None:
    words = " ".join((section.__doc__ or "").split())
    tables = [part for part in reference_page().split("\n## ") if f"\n{words}\n" in part]
    assert len(tables) == 1
    keys = [line.split("`")[1] for line in tables[0].splitlines() if line.startswith("| `")]
    assert keys == list(section.model_fields)


def test_rows_say_kind_default_and_meaning() -> None:
    page = reference_page()
    assert '| `norm` | `"pre"`, `"post"` | `"pre"` | Layer normalisation before' in page
    assert "| `tied` | `true`, `false` | `true` | One matrix" in page
    assert "| `boundaries` | list of whole numbers | needed | Steps at which" in page
    assert "| `early_stop` | list of tables |  | When to stop" in page
    assert "| `epsilon` | number | `1e-09` | Added to the denominator. |" in page


def test_no_row_has_an_empty_kind_or_a_broken_cell() -> None:
    rows = [line for line in reference_page().splitlines() if line.startswith("| `")]
    cells = [line.replace("\\|", "").split(" | ") for line in rows]
    assert all(len(row) == 4 and row[1].strip() for row in cells)


def test_the_page_in_docs_is_up_to_date() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "echelon.recipe.reference"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == reference_page()
    assert PAGE.read_text() == printed, "run: python -m echelon.recipe.reference > docs/recipe.md"
