"""What a recipe means before anything runs, whatever its task."""

from __future__ import annotations

from echelon.data.images.store import PreparedImages
from echelon.data.planning import AnyPrepared
from echelon.explain.describe import Description, describe, render
from echelon.explain.describe_images import ImageDescription, describe_images, render_images
from echelon.recipe.schema import ClassificationRecipe, Recipe

AnyDescription = Description | ImageDescription


def describe_recipe(recipe: Recipe, prepared: AnyPrepared | None) -> AnyDescription:
    """What the recipe means; with prepared data, what it means for that data."""
    if isinstance(recipe, ClassificationRecipe):
        assert prepared is None or isinstance(prepared, PreparedImages), "a recipe's data are of its own task"
        return describe_images(recipe, prepared)
    assert not isinstance(prepared, PreparedImages), "a recipe's data are of its own task"
    return describe(recipe, prepared)


def describe_in_words(description: AnyDescription) -> str:
    """The description as text for people."""
    return render(description) if isinstance(description, Description) else render_images(description)
