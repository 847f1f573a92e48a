"""Checks that need more than one key of a recipe of image classification."""

from __future__ import annotations

from collections.abc import Iterator

from echelon.errors import Problem
from echelon.recipe.checks import division_problems, find_part_problems
from echelon.recipe.schema import ClassificationRecipe
from echelon.recipe.sizes import image_shape, model_pixels
from echelon.shapes.image_models import parameter_sizes

_SOME_CLASSES, _SOME_PIXELS = 1000, 224
"""For the names of a network's parameters, which do not depend on them."""


def find_image_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    """What is wrong between the keys of its own tables."""
    yield from _batch_problems(recipe)
    yield from _image_data_problems(recipe)
    yield from _augment_problems(recipe)
    yield from _network_problems(recipe)
    if recipe.lora is not None:
        shape = image_shape(recipe.model, _SOME_CLASSES, _seen_pixels(recipe) or _SOME_PIXELS)
        yield from find_part_problems(recipe, parameter_sizes(shape))
    if recipe.exchange.backup_workers:
        yield Problem(
            "exchange.backup_workers",
            "BatchNorm needs what every slot has measured; leave backup workers out",
        )


def _batch_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    images, slots = recipe.train.batch_images, recipe.train.slots
    yield from division_problems("train.batch_images", images, slots)
    if images < 2 * slots:
        yield Problem(
            "train.batch_images",
            f"{images} is too few: BatchNorm needs two images in each slot, and there "
            f"{'is 1 slot' if slots == 1 else f'are {slots} slots'}; use {2 * slots} or more",
        )


def _image_data_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    data = recipe.data
    if data.source in ("folder", "idx") and data.path is None:
        yield Problem("data.path", f'is missing; source = "{data.source}" needs it')
    if data.source != "idx" and data.class_names is not None:
        yield Problem("data.class_names", "are those of the folders, or of the data set; remove it")
    if data.source == "digits" and data.path is not None:
        yield Problem("data.path", "the digits come with scikit-learn and have no path; remove it")
    if data.source != "cifar10" and not data.verify:
        yield Problem("data.verify", "only CIFAR-10's files have known hashes to be verified; remove it")
    if data.source == "folder" and data.pixels is None:
        yield Problem("data.pixels", 'is missing; source = "folder" needs it, as images differ in size')
    if data.source != "folder" and data.stored_pixels is not None:
        yield Problem("data.stored_pixels", f"{data.source} is stored as it is; remove it")
    if data.stored_pixels is not None and data.pixels is not None and data.stored_pixels < data.pixels:
        yield Problem("data.stored_pixels", f"{data.stored_pixels} is less than data.pixels; raise it")
    if data.valid_images == 0:
        if recipe.evaluate.final == "best":
            advice = 'set it to "last" or "average"'
            yield Problem(
                "evaluate.final", f'"best" is chosen on a validation set, and there is none; {advice}'
            )
        if recipe.early_stop:
            yield Problem("early_stop", "needs a validation set; remove it, or raise data.valid_images")


def _augment_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    augment, pixels = recipe.data.augment, _seen_pixels(recipe)
    if augment.pad and augment.min_area is not None:
        yield Problem("data.augment", "has both pad and min_area, two ways to crop; choose one")
    if augment.pad and augment.border == "mirror" and pixels is not None and augment.pad >= pixels:
        yield Problem("data.augment.pad", f"a mirrored border of {augment.pad} is wider than the image")
    if pixels is not None and recipe.evaluate.shift >= pixels:
        yield Problem("evaluate.shift", f"{recipe.evaluate.shift} moves the whole image away; lower it")
    if pixels is not None and augment.cutout > pixels:
        yield Problem("data.augment.cutout", f"{augment.cutout} is more than the image's {pixels} pixels")


def _network_problems(recipe: ClassificationRecipe) -> Iterator[Problem]:
    model = recipe.model
    if model.preset == "speednet":
        for key in ("stem", "zero_init"):
            if getattr(model, key):
                yield Problem(f"model.{key}", "belongs to ResNets; speednet has none")
    pixels = _seen_pixels(recipe)
    if model.preset == "speednet" and pixels is not None and pixels < 26:
        message = f"{pixels} is too few for speednet, which halves the image three times and pools"
        yield Problem("data.pixels", f"{message}; use 26 or more")


def _seen_pixels(recipe: ClassificationRecipe) -> int | None:
    """Height and width of what the model sees; None if that is missing, which is reported by itself."""
    data = recipe.data
    return None if data.source == "folder" and data.pixels is None else model_pixels(data)
