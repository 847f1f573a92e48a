"""What is trained of a model, told from the recipe alone."""

from __future__ import annotations

import math

import pytest
import torch

from echelon.errors import RecipeError
from echelon.explain.description import describe_recipe, format_description
from echelon.explain.trained_parameters import find_trained
from echelon.explain.workload import recipe_workload
from echelon.models.resnet import ResNet
from echelon.models.transformer import Transformer
from echelon.recipe.schema import Recipe
from echelon.recipe.sizes import image_shape, transformer_shape
from echelon.recipe.tasks import find_task
from echelon.recipe.trained_parts import owner_of, trained_sizes
from echelon.shapes.resnet import ResNetShape
from echelon.train.flat import FlatParameters
from echelon.train.model_parts import adapt, freeze
from tests.sample_image_recipe import sample_image_recipe
from tests.sample_recipe import sample_recipe

FROM = "train.init_from=somewhere"
TEXT = (FROM, 'lora.targets=["*.attention.qkv","decoder.*"]', "lora.rank=2")
PICTURES = (FROM, 'lora.targets=["layer2.*","layer3.*"]', 'lora.full=["fc"]', "lora.rank=3")
FROZEN = ('train.freeze=["conv1","layer1"]',)


def build(recipe: Recipe) -> torch.nn.Module:
    if recipe.task == "translation":
        return Transformer(transformer_shape(recipe.model, recipe.data.vocabulary))  # type: ignore[arg-type, attr-defined]
    shape = image_shape(recipe.model, 10, 8)  # type: ignore[arg-type]
    assert isinstance(shape, ResNetShape)
    return ResNet(shape)


@pytest.mark.parametrize(
    "recipe",
    [
        sample_recipe(*TEXT),
        sample_image_recipe(*PICTURES),
        sample_image_recipe(*FROZEN),
        sample_image_recipe(),
        sample_recipe(FROM, 'lora.targets=["*"]'),
    ],
    ids=["text", "pictures", "frozen", "all", "every layer"],
)
def test_what_is_trained_is_known_without_building_the_model(recipe: Recipe) -> None:
    model = build(recipe)
    if recipe.lora is not None:
        adapt(model, recipe.lora)
    freeze(model, recipe.train.freeze)
    flat = FlatParameters(model)

    sizes = find_task(recipe.task).parameter_sizes(recipe, None)
    found = trained_sizes(sizes, recipe.lora, recipe.train.freeze)
    description, trained = describe_recipe(recipe, None), find_trained(recipe, sizes)
    workload = recipe_workload(recipe, None, description)

    assert found == {s.name: tuple(s.parameter.shape) for s in flat.slices}
    assert {owner_of(name) for name in found} <= set(sizes)
    assert description.trained_parameters == trained.count == flat.size
    assert description.gradient_bytes == workload.gradient_bytes == 4 * flat.size
    assert trained.frozen == sum(p.numel() for p in model.parameters() if not p.requires_grad)
    assert description.parameters == sum(math.prod(size) for size in sizes.values())
    assert workload.checkpoint_bytes() == 4 * (trained.frozen + workload.optimiser_numbers * flat.size)


def test_people_are_told_how_much_is_trained() -> None:
    described = describe_recipe(sample_image_recipe(*PICTURES), None)
    expected = f"{described.parameters:,}; {described.trained_parameters:,} are trained ("
    assert expected in format_description(described)
    assert "are trained" not in format_description(describe_recipe(sample_image_recipe(), None))


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("lora.rank=0",), r"lora\.rank: .*greater than 0"),
        (
            ('lora.targets=["q_proj"]',),
            r"lora\.targets: 'q_proj' fits no layer .*; there are encoder\.layers\.",
        ),
        (('lora.targets=["qkv"]',), r"'qkv' fits no layer .*; did you mean '\*\.qkv'\?"),
        (('lora.targets=["attention.qkv"]',), r"did you mean '\*\.attention\.qkv'\?"),
        (
            ('lora.targets=["encoder.layers.*.atention.qkv"]',),
            r"did you mean 'encoder\.layers\.\*\.attention\.qkv'\?",
        ),
        (("lora.targets=[]",), r"lora\.targets"),
        (
            ('lora.full=["encode"]',),
            r"lora\.full: the model has no 'encode'; its parts are embeddings, encoder",
        ),
        (('train.freeze=["encoder"]',), r"train\.freeze: with \[lora\]"),
        (("train.init_from=",), r"lora: adapts a model that is trained already; name it in train\.init_from"),
        (("lora.dropout=0.1",), r"lora\.dropout"),
        (("lora.r=4",), r"lora\.r: .*the keys here are rank, alpha"),
    ],
)
def test_mistakes_are_answered_with_what_may_have_been_meant(overrides: tuple[str, ...], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        sample_recipe(*TEXT, *overrides)


def test_targets_of_pictures_are_checked_too() -> None:
    with pytest.raises(RecipeError, match=r"'layer9\.\*' fits no layer.*; did you mean"):
        sample_image_recipe(*PICTURES, 'lora.targets=["layer9.*"]')
