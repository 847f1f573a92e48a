from __future__ import annotations

import re

import pytest

from echelon.data.images.cifar10 import VALID_IMAGES
from echelon.errors import UserError
from echelon.migrate.openseq2seq.convert import Made, convert
from echelon.recipe.loading import check_recipe
from echelon.recipe.schema import ClassificationRecipe, Piecewise, Sgd
from tests.migrate.openseq2seq.configs import RESNET

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
    epoch = 1_281_167 // 64  # as OpenSeq2Seq counts the steps of an epoch
    assert isinstance(recipe.schedule, Piecewise)
    assert recipe.schedule.boundaries == [30 * epoch, 60 * epoch, 80 * epoch]
    assert recipe.schedule.learning_rates == pytest.approx([0.1, 0.01, 0.001, 0.0001])
    assert (recipe.seed, recipe.evaluate.every, recipe.checkpoint.every) == (0, 5000, 5000)


def test_exponential_decay_takes_as_many_steps_as_the_epochs_have() -> None:
    text = CONFIG.replace("piecewise_constant", "exp_decay").replace('"boundaries": [30, 60, 80],', "")
    text = text.replace('"decay_rates": [0.1, 0.01, 0.001]', '"decay_rate": 0.5')
    assert convert(text, "x.py").table["schedule"]["decay_steps"] == 90 * (1_281_167 // 64)


def test_what_has_no_equivalent_is_listed() -> None:
    text = "\n".join(convert(CONFIG, "resnet18.py").notes)
    assert re.search(r"line \d+: data_layer_params.data_dir held TFRecords", text)
    assert "encoder_params.version is 2" in text
    assert re.search(r"line \d+: summaries is left out", text)
    assert re.search(r"line \d+: initializer is left out", text)


def test_what_only_scoring_has_is_listed() -> None:
    made = convert(
        CONFIG + 'train_params = {"data_layer_params": {"shuffle": True}}\n'
        'eval_params = {"batch_size_per_gpu": 64, "dtype": tf.float32,\n'
        '    "data_layer_params": {"data_dir": "elsewhere", "image_size": 96, "shuffle": False}}\n'
        'infer_params = {"data_layer_params": {"data_dir": "imagenet"}, "mine": 1}\n',
        "x.py",
    )
    first = CONFIG.count("\n") + 1
    assert [note for note in made.notes if "eval_params" in note or "infer_params" in note] == [
        f"line {first + 1}: eval_params.batch_size_per_gpu is left out: it makes no difference to the score",
        f"line {first + 2}: eval_params.data_layer_params.data_dir is left out: data.path has what is trained on and "
        "what is scored",
        f"line {first + 2}: eval_params.data_layer_params.image_size is left out: what is trained is scored with the "
        "same settings",
        f"line {first + 3}: infer_params.mine is left out: what is trained is scored with the same settings",
    ]
    assert not any("shuffle" in note for note in made.notes)


def test_pictures_that_are_not_shuffled_are_pointed_out() -> None:
    notes = convert(CONFIG + 'train_params = {"data_layer_params": {"shuffle": False}}\n', "x.py").notes
    assert any(
        "data_layer_params.shuffle has no equivalent: every epoch is shuffled" in note for note in notes
    )


def with_encoder(settings: str) -> Made:
    return convert(CONFIG.replace('"resnet_size": 18', f'"resnet_size": 18, {settings}'), "x.py")


def test_running_statistics_width_and_stem_have_equivalents() -> None:
    assert convert(CONFIG, "x.py").table["model"] == {"preset": "resnet18", "norm_momentum": 0.003}
    small = '"first_num_filters": 16, "first_kernel_size": 3, "first_conv_stride": 1, "first_pool_size": 0'
    made = with_encoder(f'"bn_momentum": 0.9, "version": 1, {small}')
    assert made.table["model"] == {
        "preset": "resnet18",
        "width": 16,
        "norm_momentum": 0.1,
        "stem": "cifar",
    }
    assert not any("first_" in note or "bn_momentum" in note for note in made.notes)


@pytest.mark.parametrize(
    ("setting", "note"),
    [
        ('"first_kernel_size": 5', "first_kernel_size is 5, which has no equivalent: this ResNet has 7"),
        ('"first_pool_stride": 1', "first_pool_stride is 1, which has no equivalent: this ResNet has 2"),
        ('"block_strides": [1, 1, 2, 2]', "block_strides is [1, 1, 2, 2], which has no equivalent"),
        ('"bottleneck": True', "bottleneck is True, which has no equivalent: this ResNet has False"),
        ('"bn_epsilon": 0.001', "bn_epsilon is 0.001, which has no equivalent: this ResNet has 1e-05"),
        ('"block_sizes": [1, 1, 1, 1]', "block_sizes has no equivalent beside resnet_size"),
    ],
)
def test_another_network_is_not_taken_over_in_silence(setting: str, note: str) -> None:
    assert any(note in line for line in with_encoder(setting).notes)


def test_the_usual_network_needs_no_notes() -> None:
    notes = with_encoder('"bottleneck": False, "block_strides": [1, 2, 2, 2], "first_pool_size": 3').notes
    assert not any("has no equivalent: this ResNet" in note for note in notes)


def test_cifar_is_known_too() -> None:
    text = CONFIG.replace("ImagenetDataLayer", "CifarDataLayer").replace('"image_size": 64, ', "")
    made = convert(text, "x.py")
    recipe = check_recipe(made.table, "x")
    assert isinstance(recipe, ClassificationRecipe)
    assert (recipe.data.source, recipe.data.augment.pad) == ("cifar10", 4)
    assert isinstance(recipe.schedule, Piecewise)
    assert recipe.schedule.boundaries[0] == 30 * ((50_000 - VALID_IMAGES) // 64)
    assert any("5,000 images, which are the validation set" in note for note in made.notes)


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
