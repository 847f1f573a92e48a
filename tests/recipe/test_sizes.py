"""Model sizes from presets and the recipe's own numbers, and lengths in steps."""

from __future__ import annotations

import pytest

from echelon.recipe.length import length_in_steps
from echelon.recipe.schema import Model, Train
from echelon.recipe.sizes import model_sizes, transformer_shape
from echelon.shapes.transformer import PRESETS, TransformerShape, parameter_count


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gives_its_sizes(preset: str) -> None:
    assert model_sizes(Model.model_validate({"preset": preset})) == PRESETS[preset]


def test_the_documentation_of_presets_is_right() -> None:
    (first, *others) = [
        f"{name}: {'width ' if name == 'tiny' else ''}{sizes['d_model']}, "
        f"{sizes['encoder_layers']}+{sizes['decoder_layers']}{' layers' if name == 'tiny' else ''}"
        for name, sizes in PRESETS.items()
    ]
    assert Model.model_fields["preset"].description == "; ".join([first, *others]) + "."


def test_own_sizes_take_the_place_of_the_preset_sizes() -> None:
    model = Model(preset="base", d_model=256, d_ff=300, heads=2, encoder_layers=1, decoder_layers=3)
    assert model_sizes(model) == {
        "d_model": 256,
        "d_ff": 300,
        "heads": 2,
        "encoder_layers": 1,
        "decoder_layers": 3,
    }


def test_the_shape_follows_every_key_that_decides_parameters() -> None:
    model = Model(preset="tiny", norm="post", tied=False, attention_biases=True)
    assert transformer_shape(model, 500) == TransformerShape(
        vocabulary=500, norm="post", tied=False, attention_biases=True, **PRESETS["tiny"]
    )


def test_transformer_base_has_the_known_number_of_parameters() -> None:
    assert parameter_count(transformer_shape(Model(preset="base"), 32768)) == 60_880_896


@pytest.mark.parametrize(
    ("train", "steps_per_epoch", "steps"),
    [
        (Train(steps=70), 12.5, 70),
        (Train(epochs=2.0), 12.5, 25),
        (Train(epochs=3.0), 12.5, 38),
        (Train(epochs=0.001), 12.5, 1),
    ],
)
def test_epochs_become_steps_and_the_last_one_is_taken_whole(
    train: Train, steps_per_epoch: float, steps: int
) -> None:
    assert length_in_steps(train, steps_per_epoch) == steps
