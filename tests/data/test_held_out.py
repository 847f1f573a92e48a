"""What a user is told about validation and test sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from echelon.commands.prepare import data_notes, prepare_data
from echelon.recipe.loading import load_translation_recipe


def notes_of(recipe_file: Path, *settings: str) -> list[str]:
    recipe = load_translation_recipe(recipe_file, settings)
    return data_notes(recipe, prepare_data(recipe, recipe_file.parent, Console(quiet=True)))


def test_usual_sets_need_no_note(toy_recipe: Path) -> None:
    assert notes_of(toy_recipe) == []
    embedded = ["data.train=[{embedded=true}]", "data.valid={embedded=true}", "data.test={embedded=true}"]
    assert notes_of(toy_recipe, *embedded) == []


def test_an_absurdly_long_line_is_named(toy_recipe: Path) -> None:
    for side in ("en", "de"):
        file = toy_recipe.parent / f"test.{side}"
        file.write_text(file.read_text() + "dog " * 3000 + "\n")
    (note,) = notes_of(toy_recipe, "evaluate.split_above=30")
    assert note.startswith(
        "note: data.test: 1 pair has a side of more than 1,024 tokens and does not count in the loss (line 21 has "
    )
    assert note.endswith("lines are translated in parts of at most 30. Is the file right?")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_a_set_that_is_trained_on_is_named(toy_recipe: Path, split: str) -> None:
    copy = toy_recipe.parent / "copy.de"
    copy.write_bytes((toy_recipe.parent / "train.de").read_bytes())
    (note,) = notes_of(toy_recipe, f"data.{split}={{source='train.en', target='copy.de'}}")
    assert note.startswith(f"note: data.{split} is trained on: ")
    assert note.endswith("in data.train, so its score says nothing about other text")


def test_notes_are_shown_by_prepare(toy_recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = load_translation_recipe(toy_recipe, ["data.valid={source='train.en', target='train.de'}"])
    prepare_data(recipe, toy_recipe.parent, Console(stderr=True))
    assert "note: data.valid is trained on" in capsys.readouterr().err
