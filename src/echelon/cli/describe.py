"""`echelon describe`."""

from __future__ import annotations

from echelon.cli.options import Json, RecipeFile, Set
from echelon.cli.output import messages, show
from echelon.console import output_width, tell, wrap


def describe(recipe: RecipeFile, set_: Set = None, json_: Json = False) -> None:
    """Show what a recipe means before anything runs: parameters, bytes, FLOPs, schedule."""
    from echelon.commands.prepare import find_data
    from echelon.explain.description import describe_recipe, format_description
    from echelon.recipe.loading import load_recipe
    from echelon.recipe.schedule import warm_up_note

    loaded = load_recipe(recipe, set_ or [])
    description = describe_recipe(loaded, find_data(loaded, recipe.parent))
    if note := warm_up_note(loaded, description.steps):
        tell(messages(), note)
    show(json_, description, wrap(format_description(description), output_width()))
