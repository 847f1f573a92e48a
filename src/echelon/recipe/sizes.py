"""The model that a recipe asks for: its preset, with the recipe's own sizes in place of the preset's."""

from __future__ import annotations

from echelon.recipe.schema import Model
from echelon.shapes.transformer import PRESETS, Sizes, TransformerShape


def model_sizes(model: Model) -> Sizes:
    """Widths and depths, the preset's where the recipe does not say otherwise."""
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
        tied=model.tied,
        attention_biases=model.attention_biases,
        **model_sizes(model),
    )
