"""A small complete recipe of image classification that tests copy and change."""

from __future__ import annotations

import copy
from typing import Any

from echelon.recipe.loading import apply_override, check_recipe
from echelon.recipe.schema import ClassificationRecipe

_TABLE: dict[str, Any] = {
    "version": 1,
    "name": "pictures",
    "task": "classification",
    "data": {"source": "digits"},
    "model": {"preset": "resnet20", "width": 4},
    "train": {"steps": 10, "batch_images": 24, "slots": 3},
    "schedule": {"kind": "fixed", "learning_rate": 0.1},
}


def sample_image_recipe(*overrides: str) -> ClassificationRecipe:
    """The sample as a checked recipe, changed as by --set."""
    table = copy.deepcopy(_TABLE)
    for override in overrides:
        apply_override(table, override)
    recipe = check_recipe(table, where="pictures.toml")
    assert isinstance(recipe, ClassificationRecipe)
    return recipe
