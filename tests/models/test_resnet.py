"""ResNets and the fast network: the parameters that shapes count, the published numbers, and what forward does."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from echelon.models.batch_norm import BatchNorm
from echelon.models.resnet import ResNet
from echelon.models.speednet import SpeedNet
from echelon.shapes.image_models import layers, parameter_count
from echelon.shapes.resnet import PRESETS
from echelon.shapes.speednet import SpeedNetShape


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("wide_resnet50_2", 68_883_240),
        ("resnext50_32x4d", 25_028_904),
    ],
)
def test_modules_have_the_published_number_of_parameters(name: str, published: int) -> None:
    with torch.device("meta"):
        model = ResNet(PRESETS[name])
    assert sum(parameter.numel() for parameter in model.parameters()) == published


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet50"])
def test_modules_and_shapes_agree_name_by_name(name: str) -> None:
    with torch.device("meta"):
        model = ResNet(PRESETS[name])
    expected = {part: size for layer in layers(PRESETS[name]) for part, size in layer.parameters}
    assert {part: tuple(value.shape) for part, value in model.named_parameters()} == expected


def test_the_fast_network_and_its_shape_agree() -> None:
    shape = SpeedNetShape(width=8, classes=7)
    model = SpeedNet(shape)
    expected = {part: size for layer in layers(shape) for part, size in layer.parameters}
    assert {part: tuple(value.shape) for part, value in model.named_parameters()} == expected
    assert sum(value.numel() for value in model.parameters()) == parameter_count(shape)
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize(("name", "pixels"), [("resnet20", 32), ("resnet20", 8), ("resnet18", 64)])
def test_logits_of_every_size_of_picture(name: str, pixels: int) -> None:
    shape = dataclasses.replace(PRESETS[name], classes=5, width=4, pixels=pixels)
    assert ResNet(shape)(torch.randn(2, 3, pixels, pixels)).shape == (2, 5)


def test_a_zeroed_block_is_its_shortcut() -> None:
    shape = dataclasses.replace(PRESETS["resnet20"], width=4)
    model = ResNet(shape, zero_init=True)
    x = torch.rand(2, 4, 8, 8)
    block = model.get_submodule("layer1.0")
    torch.testing.assert_close(block(x), F.relu(x))


def test_batch_norm_equals_torchs_and_measures_the_slot() -> None:
    ours, theirs = BatchNorm(3), torch.nn.BatchNorm2d(3, momentum=1.0)
    x = torch.randn(4, 3, 5, 5) * 2 + 1
    torch.testing.assert_close(ours(x), theirs(x))
    assert theirs.running_mean is not None
    assert theirs.running_var is not None
    torch.testing.assert_close(ours.measured_2C[0], theirs.running_mean)
    torch.testing.assert_close(ours.measured_2C[1], theirs.running_var)
    assert torch.equal(ours.running_mean, torch.zeros(3)), "running statistics are for who trains to update"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_batch_norm_keeps_float32_statistics_for_half_pictures(dtype: torch.dtype) -> None:
    norm = BatchNorm(3)
    x = (torch.randn(8, 3, 6, 6) * 3 + 20).to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        y = norm(x)
    assert norm.measured_2C.dtype == torch.float32
    torch.testing.assert_close(norm.measured_2C[0], x.float().mean((0, 2, 3)), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(
        y.float(), F.batch_norm(x.float(), None, None, training=True), atol=0.05, rtol=0.02
    )


def test_whitened_patches_have_no_correlation() -> None:
    torch.manual_seed(0)
    mixing = torch.randn(3, 3)
    x = torch.einsum("dc,nchw->ndhw", mixing, torch.randn(200, 3, 9, 9))
    model = SpeedNet(SpeedNetShape(width=4))
    model.whiten.fit(x)
    y = model.whiten(x)[:, :12].transpose(0, 1).reshape(12, -1)
    torch.testing.assert_close(torch.cov(y), torch.eye(12), atol=0.05, rtol=0)
