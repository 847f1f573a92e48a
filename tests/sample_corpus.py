"""A small parallel corpus with a recipe beside it, for tests that need real files."""

from __future__ import annotations

from pathlib import Path

from echelon.recipe.toml import dump_recipe
from tests.sample_recipe import sample_recipe

_ENGLISH = ("The dog", "A cat", "My friend", "Our teacher", "The child")
_GERMAN = ("Der Hund", "Eine Katze", "Mein Freund", "Unser Lehrer", "Das Kind")
_VERBS = (("sees", "sieht"), ("hears", "hört"), ("likes", "mag"), ("finds", "findet"))
_THINGS = (("the house", "das Haus"), ("a tree", "einen Baum"), ("the sea", "das Meer"))


def write_corpus(folder: Path) -> Path:
    """Write train and valid files and the sample recipe into `folder`; returns the recipe's path."""
    pairs = [
        (f"{english} {verb} {thing} {number} times.", f"{german} {verb_de} {thing_de} {number} Mal.")
        for english, german in zip(_ENGLISH, _GERMAN, strict=True)
        for verb, verb_de in _VERBS
        for thing, thing_de in _THINGS
        for number in (2, 3, 4)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for split, chosen in (("valid", pairs[::20]), ("train", pairs)):
        (folder / f"{split}.en").write_text("".join(f"{english}\n" for english, _ in chosen))
        (folder / f"{split}.de").write_text("".join(f"{german}\n" for _, german in chosen))
    recipe = folder / "recipe.toml"
    recipe.write_text(dump_recipe(sample_recipe()))
    return recipe
