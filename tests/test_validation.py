"""Wrong input in our words, whatever pydantic says."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.cloud.cluster_spec import ClusterSpec, parse_spec
from echelon.errors import RecipeError, UserError
from echelon.recipe.loading import load_recipe
from echelon.recipe.shipped import find_recipe


def test_a_misspelt_key_of_a_cluster_gets_a_suggestion() -> None:
    with pytest.raises(RecipeError, match=r"bugdet: there is no such key; did you mean 'budget'\?"):
        parse_spec({"bugdet": 3}, ClusterSpec, "cluster.toml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("demo", "the one that comes with Echelon is .*demo.toml"),
        ("nothing", "there is no such recipe file$"),
    ],
)
def test_a_recipe_named_without_its_ending_is_found_among_the_shipped(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(Path(name))


@pytest.mark.parametrize(
    ("key", "meant"),
    [("schedule.lr", "learning_rate"), ("lr", "schedule.learning_rate"), ("optimizer", "optimiser")],
)
def test_the_names_of_other_systems_lead_to_ours(key: str, meant: str) -> None:
    with pytest.raises(RecipeError, match=f"did you mean .*{meant}"):
        load_recipe(find_recipe("demo"), [f"{key}=1"])
