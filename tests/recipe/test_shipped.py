"""Recipes that come with Echelon."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.recipe.loading import load_recipe
from echelon.recipe.shipped import FOLDER, find_recipe


def test_the_recipes_of_a_checkout_are_the_shipped_ones() -> None:
    assert (Path(__file__).parents[2] / "recipes").resolve() == FOLDER.resolve()


def test_a_recipe_that_is_not_shipped_is_an_error() -> None:
    with pytest.raises(UserError, match=r"nothing\.toml is missing; install Echelon again"):
        find_recipe("nothing")


def test_a_missing_file_with_the_name_of_a_shipped_recipe_is_told_where_that_is(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(tmp_path / "recipes" / "demo.toml")
    assert str(caught.value) == (
        f"{tmp_path}/recipes/demo.toml: there is no such recipe file; "
        f"the one that comes with Echelon is {find_recipe('demo')}"
    )
