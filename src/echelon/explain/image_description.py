"""What a recipe of image classification means before anything runs, computed without torch."""

from __future__ import annotations

from dataclasses import dataclass

from echelon.data.batch_plan import plan_images
from echelon.data.images.image_store import PreparedImages
from echelon.explain.checkpoints import checkpoint_parts, format_parts, optimiser_bytes
from echelon.explain.description import Description, format_facts, some_rates, steps_of
from echelon.recipe.schedule import formula
from echelon.recipe.schema import ClassificationRecipe
from echelon.recipe.sizes import image_shape, model_pixels
from echelon.shapes.image_models import (
    gradient_bytes,
    matrices,
    parameter_count,
    parameters_by_part,
    training_flops,
)

ASSUMED_CLASSES = {"digits": 10, "cifar10": 10, "idx": 10, "folder": 1000}
"""Where the data has not been prepared yet."""


@dataclass(frozen=True)
class ImageDescription(Description):
    """Everything `describe --json` prints of image classification."""

    model: str
    classes: int
    pixels: int
    images_per_step: int
    images: dict[str, int]
    """Of each split, once the data is prepared."""


def describe_images(recipe: ClassificationRecipe, prepared: PreparedImages | None) -> ImageDescription:
    """What the recipe means; with prepared data, what it means for that data."""
    classes = num_classes(recipe, prepared)
    shape = image_shape(recipe.model, classes, model_pixels(recipe.data))
    per_epoch = plan_images(recipe, prepared).steps_per_epoch if prepared else None
    steps = steps_of(recipe, per_epoch)
    parts = checkpoint_parts(recipe, parameter_count(shape), matrices(shape))
    return ImageDescription(
        name=recipe.name,
        task=recipe.task,
        parameters=parameter_count(shape),
        parameters_by_layer=parameters_by_part(shape),
        model=recipe.model.preset,
        classes=classes,
        pixels=shape.pixels,
        gradient_bytes=gradient_bytes(shape),
        checkpoint_bytes=round(sum(part.bytes(1) for part in parts)),
        checkpoint_parts=format_parts(parts),
        optimiser_bytes=optimiser_bytes(recipe, parameter_count(shape)),
        shares_optimiser=recipe.train.shard == "optimiser",
        images_per_step=recipe.train.batch_images,
        slots=recipe.train.slots,
        flops_per_step=training_flops(shape, recipe.train.batch_images),
        is_prepared=prepared is not None,
        images={split.name: split.images for split in prepared.manifest.splits} if prepared else {},
        steps_per_epoch=per_epoch,
        steps=steps,
        epochs=recipe.train.epochs or (steps / per_epoch if steps and per_epoch else None),
        schedule=formula(recipe.schedule, 1),
        learning_rates=some_rates(recipe, steps),
    )


def num_classes(recipe: ClassificationRecipe, prepared: PreparedImages | None) -> int:
    """How many classes there are; a guess until the data is prepared."""
    return prepared.num_classes if prepared else ASSUMED_CLASSES[recipe.data.source]


def format_images(description: ImageDescription) -> str:
    """The description as text for people."""
    d = description
    data = ", ".join(f"{name} {count:,}" for name, count in d.images.items()) or "not prepared yet"
    about = [
        f"  model            {d.model}, {d.classes:,} classes{'' if d.is_prepared else ' (assumed)'}, "
        f"{d.pixels}x{d.pixels} pixels",
        f"  pictures         {data}",
    ]
    return format_facts(d, about, f"{d.images_per_step:,} pictures in {d.slots} slots")
