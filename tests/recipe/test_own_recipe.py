"""Recipes of a user's own tasks."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import echelon
from echelon.errors import RecipeError
from echelon.explain.verdict import ScoredRun, Verdict, judge
from echelon.recipe.own_recipe import OwnEvaluation, OwnRecipe
from echelon.train.evaluation import improves

MAE = {"scores": ["mae"], "less_is_better": ["mae"]}


@pytest.mark.parametrize("name", ["step", "seconds"])
def test_a_score_is_not_named_like_what_a_record_says_besides(name: str) -> None:
    with pytest.raises(ValidationError, match="choose another name"):
        OwnEvaluation(scores=["loss", name])


def recipe_of(seed: int = 1, steps: int = 10, **evaluate: object) -> OwnRecipe:
    recipe = echelon.make_recipe(
        name="houses",
        task="houses:Prices",
        seed=seed,
        train={"steps": steps},
        schedule={"kind": "fixed", "learning_rate": 0.01},
        evaluate=evaluate,
    )
    assert isinstance(recipe, OwnRecipe)
    return recipe


def test_less_is_better_of_what_a_recipe_says_so_of() -> None:
    recipe_of(scores=["gain", "mae"], less_is_better=["mae"])
    assert improves("mae", 1.0, 2.0)
    assert not improves("mae", 2.0, 1.0)
    assert improves("gain", 2.0, 1.0)


def test_less_is_better_only_of_scores_that_the_recipe_has() -> None:
    with pytest.raises(RecipeError, match=r"evaluate\.less_is_better: 'rmse' is not among evaluate\.scores"):
        recipe_of(scores=["mae"], less_is_better=["mae", "rmse"])


def test_scores_of_echelon_s_own_tasks_keep_their_direction() -> None:
    with pytest.raises(RecipeError, match="'top1' is a score of Echelon's own tasks"):
        recipe_of(scores=["top1"], less_is_better=["top1"])


def test_a_comparison_of_seeds_prefers_the_lesser_error() -> None:
    runs = [
        ScoredRun(f"{name}-seed{seed}", recipe_of(seed, steps, **MAE), {"mae": mae + seed / 1000}, "", [], [])
        for name, steps, mae in (("long", 20, 1.0), ("short", 10, 2.0))
        for seed in (1, 2, 3)
    ]
    found = judge(runs, "test")
    assert isinstance(found, Verdict)
    assert found.sentences[0] == "long and short differ: long is better by mae."
