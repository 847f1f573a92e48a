from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from echelon.errors import UserError
from echelon.migrate import imagenet_command
from echelon.migrate.imagenet_command import translate
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import ClassificationRecipe


@pytest.fixture(autouse=True)
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagenet_command, "find_recipe", lambda name: f"recipes/{name}.toml")


def test_one_node_trains_by_itself() -> None:
    assert str(translate(["-n", "1", "-g", "1", "-nr", "0", "--epochs", "2"], {})) == (
        "echelon train recipes/imagenet-resnet18.toml --run runs/imagenet --workers 1 --set train.epochs=2.0 "
        "--set train.slots=1 --set train.batch_images=256"
    )


def test_the_second_of_two_nodes_finds_the_first() -> None:
    modern = translate(["-n", "2", "-g", "2", "-nr", "1", "--data", "/data"], {"MASTER_ADDR": "10.0.0.1"})
    text = str(modern)
    assert "--workers 2 --nodes 2 --node-rank 1 --master 10.0.0.1:29500" in text
    assert "--set train.slots=4 --set train.batch_images=1024 --set data.path=/data" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "2", "-nr", "0"], "set MASTER_ADDR"),
        (["-n", "2", "-nr", "2"], "nodes have the numbers 0 to 1"),
        (["-n", "two"], "invalid int value"),
    ],
)
def test_mistakes_are_the_user_s(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        translate(arguments, {})


def test_the_recipe_takes_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    words = translate(["-n", "2", "-g", "2", "-nr", "1", "--data", "d"], {"MASTER_ADDR": "10.0.0.1"}).words
    settings = [word for before, word in pairwise(words) if before == "--set"]
    recipe = load_recipe(Path(words[1]), settings)
    assert isinstance(recipe, ClassificationRecipe)
    assert (recipe.train.epochs, recipe.train.batch_images, recipe.train.slots, recipe.data.path) == (
        2.0,
        1024,
        4,
        str(Path("d").absolute()),
    )
