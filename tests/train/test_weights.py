"""Which weights a run is used with, and whether they are its model's."""

from __future__ import annotations

import pytest
from tests.sample_image_recipe import sample_image_recipe
from tests.sample_recipe import sample_recipe
from torch import nn

from echelon.data.images.image_store import Normalisation
from echelon.errors import CheckpointError
from echelon.inference.pictures import PictureRules
from echelon.inference.torch_models import build_model
from echelon.inference.torch_pictures import build_classifier
from echelon.tasks.classification import build_network
from echelon.tasks.translation import build_transformer
from echelon.train.weights import Weights, require_size

RULES = PictureRules(("a", "b"), 8, Normalisation((0.0,) * 3, (1.0,) * 3))


def weights_of(model: nn.Module) -> Weights:
    return Weights(model.state_dict(), 1, "step-00000001")


@pytest.mark.parametrize(
    "size", ["model.d_model=1048576", "model.d_ff=10000000000", "model.encoder_layers=1000000000000"]
)
def test_a_transformer_larger_than_its_weights_is_not_built(size: str) -> None:
    """A run folder of a few kB asked for 77 GB, or did not end."""
    weights = weights_of(build_transformer(sample_recipe(), 200))
    with pytest.raises(CheckpointError, match=r"is larger than its .* numbers"):
        build_model(sample_recipe(size), 200, weights)


def test_a_network_larger_than_its_weights_is_not_built() -> None:
    weights = weights_of(build_network(sample_image_recipe(), 2, 8))
    with pytest.raises(CheckpointError, match=r"is larger than its .* numbers"):
        build_classifier(sample_image_recipe("model.width=100000000"), RULES, weights)


@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_weights_are_as_large_as_their_own_model(preset: str) -> None:
    recipe = sample_recipe(f"model.preset={preset}")
    require_size(recipe, weights_of(build_transformer(recipe, 200)))


@pytest.mark.parametrize("preset", ["resnet20", "resnet18"])
def test_weights_are_as_large_as_their_own_network(preset: str) -> None:
    recipe = sample_image_recipe(f"model.preset={preset}")
    require_size(recipe, weights_of(build_network(recipe, 2, 8)))
