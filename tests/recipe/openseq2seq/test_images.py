from __future__ import annotations

import re

import pytest

from echelon.errors import UserError
from echelon.recipe.loading import check_recipe
from echelon.recipe.openseq2seq.convert import convert
from echelon.recipe.schema import ClassificationRecipe, Piecewise, Sgd
from tests.recipe.openseq2seq.configs import RESNET

CONFIG = RESNET.format(data="imagenet")


def test_a_resnet_means_what_it_meant() -> None:
    made = convert(CONFIG, "resnet18.py")
    recipe = check_recipe(made.table, "x")
    assert isinstance(recipe, ClassificationRecipe)
    assert (recipe.data.source, recipe.data.path, recipe.data.pixels) == ("folder", "imagenet", 64)
    assert (recipe.data.augment.min_area, recipe.data.augment.flip) == (0.08, "random")
    assert recipe.model.preset == "resnet18"
    assert (recipe.train.epochs, recipe.train.batch_images, recipe.train.slots) == (90.0, 64, 2)
    assert recipe.optimiser == Sgd(kind="sgd", momentum=0.9, weight_decay=1e-4)
    epoch = 1_281_167 / 64
    assert isinstance(recipe.schedule, Piecewise)
    assert recipe.schedule.boundaries == [round(30 * epoch), round(60 * epoch), round(80 * epoch)]
    assert recipe.schedule.learning_rates == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    assert (recipe.seed, recipe.evaluate.every, recipe.checkpoint.every) == (0, 5000, 5000)


def test_what_has_no_equivalent_is_listed() -> None:
    text = "\n".join(convert(CONFIG, "resnet18.py").notes)
    assert re.search(r"line \d+: data_layer_params.data_dir held TFRecords", text)
    assert "encoder_params.version is 2" in text
    assert re.search(r"line \d+: summaries is left out", text)
    assert re.search(r"line \d+: initializer is left out", text)


def test_cifar_is_known_too() -> None:
    text = CONFIG.replace("ImagenetDataLayer", "CifarDataLayer").replace('"image_size": 64, ', "")
    recipe = check_recipe(convert(text, "x.py").table, "x")
    assert isinstance(recipe, ClassificationRecipe)
    assert (recipe.data.source, recipe.data.augment.pad) == ("cifar10", 4)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"resnet_size": 18',
            '"resnet_size": 19',
            r"x\.py:\d+: encoder_params.resnet_size is 19; use one of 18, 34",
        ),
        ('"encoder": ResNetEncoder', '"encoder": tf.AlexNet', "encoder is AlexNet; only ResNetEncoder"),
        (
            "import ImagenetDataLayer",
            "import MnistDataLayer as ImagenetDataLayer",
            "data_layer is MnistDataLayer",
        ),
    ],
)
def test_what_cannot_be_converted_is_an_error(old: str, new: str, message: str) -> None:
    assert old in CONFIG
    with pytest.raises(UserError, match=message):
        convert(CONFIG.replace(old, new), "x.py")
