"""What a recipe of image classification means, in numbers and words."""

from __future__ import annotations

from pathlib import Path

from echelon.data.images.prepare import prepare_images
from echelon.explain.description import describe_recipe, format_description
from echelon.explain.workload import recipe_workload
from echelon.recipe.loading import load_recipe
from tests.sample_image_recipe import sample_image_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def test_imagenet_is_described_before_it_is_here() -> None:
    recipe = load_recipe(RECIPES / "imagenet-resnet50.toml")
    description = describe_recipe(recipe, None)
    assert description.parameters == 25_557_032
    assert description.gradient_bytes == 4 * 25_557_032
    assert round(description.flops_per_step / 2048 / 3 / 2 / 1e9, 2) == 4.09
    assert "1,000 classes (assumed), 224x224 pixels" in format_description(description)


def test_prepared_pictures_give_steps_and_splits(tmp_path: Path) -> None:
    recipe = sample_image_recipe("train.steps=", "train.epochs=2")
    prepared = prepare_images(recipe.data, recipe_folder=tmp_path, cache=tmp_path)
    description = describe_recipe(recipe, prepared)
    assert description.steps == 105
    words = format_description(description)
    assert "train 1,257, valid 180, test 360" in words
    assert "24 images in 3 slots" in words


def test_a_step_of_pictures_can_be_planned() -> None:
    recipe = load_recipe(RECIPES / "imagenet-resnet18.toml")
    description = describe_recipe(recipe, None)
    workload = recipe_workload(recipe, None, description)
    assert workload.gradient_bytes == description.gradient_bytes
    assert workload.training_flops == description.flops_per_step
    assert (workload.unit, workload.objects) == ("images", 2048)
