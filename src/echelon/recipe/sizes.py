"""The model that a recipe asks for: its preset, with the recipe's own sizes in place of the preset's."""

from __future__ import annotations

from dataclasses import replace

from echelon.recipe.image_sections import ImageData, ImageModel
from echelon.recipe.schema import Model
from echelon.shapes import resnet, speednet
from echelon.shapes.image_models import ImageShape
from echelon.shapes.transformer import PRESETS, Sizes, TransformerShape

NATIVE_PIXELS = {"digits": 8, "cifar10": 32, "idx": 28}


def model_sizes(model: Model) -> Sizes:
    """Widths and depths, the preset's unless the recipe says otherwise."""
    preset = PRESETS[model.preset]
    return {
        "d_model": model.d_model or preset["d_model"],
        "d_ff": model.d_ff or preset["d_ff"],
        "heads": model.heads or preset["heads"],
        "encoder_layers": model.encoder_layers or preset["encoder_layers"],
        "decoder_layers": model.decoder_layers or preset["decoder_layers"],
    }


def transformer_shape(model: Model, vocabulary: int) -> TransformerShape:
    """The whole shape, for a vocabulary of that many pieces."""
    return TransformerShape(
        vocabulary=vocabulary,
        norm=model.norm,
        tied="target" if model.separate_source else model.tied,
        attention_biases=model.attention_biases,
        activation=model.activation,
        output_bias=model.output_bias,
        **model_sizes(model),
    )


def model_pixels(data: ImageData) -> int:
    """Height and width of the images that the model sees."""
    return data.pixels or NATIVE_PIXELS[data.source]


def image_shape(model: ImageModel, classes: int, pixels: int) -> ImageShape:
    """The whole shape of a network for this many classes, and images of this size."""
    if model.preset == "speednet":
        shape = speednet.SpeedNetShape(classes=classes, pixels=pixels)
        return replace(shape, width=model.width or shape.width)
    preset = resnet.PRESETS[model.preset]
    return replace(
        preset,
        classes=classes,
        pixels=pixels,
        width=model.width or preset.width,
        stem=model.stem or preset.stem,
    )
