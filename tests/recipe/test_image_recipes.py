"""Recipes of image classification: their own keys, their own mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.errors import RecipeError
from echelon.recipe.loading import check_recipe, load_recipe
from echelon.recipe.schema import ClassificationRecipe
from echelon.recipe.toml import dump_recipe
from tests.sample_image_recipe import sample_image_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(
    "name", ["digits", "cifar10-resnet44", "cifar10-fast", "imagenet-resnet18", "imagenet-resnet50"]
)
def test_the_recipes_that_come_with_echelon_are_right(name: str) -> None:
    recipe = load_recipe(RECIPES / f"{name}.toml")
    assert isinstance(recipe, ClassificationRecipe)
    assert recipe.name == name


def test_defaults_are_those_of_classification() -> None:
    recipe = sample_image_recipe()
    assert recipe.optimiser.kind == "sgd"
    assert recipe.checkpoint.best == "top1"
    assert recipe.train.label_smoothing == 0.0


def test_a_recipe_written_back_is_the_same(tmp_path: Path) -> None:
    recipe = sample_image_recipe("early_stop=[{metric = 'top5'}]", "data.augment.cutout=4")
    (tmp_path / "again.toml").write_text(dump_recipe(recipe))
    assert load_recipe(tmp_path / "again.toml") == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task=clasification", "did you mean 'classification'"),
        ("task=3", "3 is not allowed; use 'translation' or 'classification'"),
        ("train.batch_tokens=4096", "train.batch_tokens: there is no such key; did you mean 'batch_images'"),
        ("train.batch_images=25", "25 does not divide into 3 slots; use 24 or 27"),
        (
            "train.batch_images=3",
            "BatchNorm needs two images in each slot, and there are 3 slots; use 6 or more",
        ),
        ("data.source=folder", "data.path: is missing"),
        ("data.source=folder", "data.pixels: is missing"),
        ("data.path=elsewhere", "the digits come with scikit-learn"),
        ("data.valid_images=0", 'evaluate.final: "best" is chosen on a validation set'),
        ("data.augment={pad = 2, min_area = 0.5}", "two ways to crop; choose one"),
        ("checkpoint.best=bleu", "use 'top1', 'top5' or 'loss'"),
        ("schedule={kind = 'transformer'}", "scaled by a Transformer's width"),
        ("model={preset = 'speednet', stem = 'cifar'}", "belongs to ResNets"),
        ("model={preset = 'speednet'}", "data.pixels: 8 is too few for speednet"),
        ("evaluate.shift=8", "evaluate.shift: 8 moves the whole image away"),
        ("data.augment.cutout=9", "data.augment.cutout: 9 is more than the image's 8 pixels"),
        ("data.augment={pad = 8, border = 'mirror'}", "a mirrored border of 8 is wider than the image"),
        ("data.verify=false", "only CIFAR-10's files"),
    ],
)
def test_mistakes_are_said_with_what_to_do(override: str, message: str) -> None:
    with pytest.raises(RecipeError) as raised:
        sample_image_recipe(override)
    assert message in str(raised.value)


def test_a_task_that_is_no_word_is_refused() -> None:
    with pytest.raises(RecipeError, match="task"):
        check_recipe({"version": 1, "name": "x", "task": ["a"]}, where="x.toml")
