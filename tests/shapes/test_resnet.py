"""ResNets: the parameter counts that everybody knows, and FLOPs as the papers count them."""

from __future__ import annotations

import pytest

from echelon.shapes.image_models import (
    layers,
    parameter_count,
    parameters_by_part,
    training_flops,
)
from echelon.shapes.resnet import PRESETS


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("resnet18", 11_689_512),  # torchvision's counts
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("resnet26", 15_995_176),
        ("wide_resnet50_2", 68_883_240),
        ("wide_resnet101_2", 126_886_696),
        ("resnext50_32x4d", 25_028_904),
        ("resnext101_32x8d", 88_791_336),
        ("resnet20", 269_722),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
    ],
)
def test_parameters_are_those_that_are_published(name: str, count: int) -> None:
    assert parameter_count(PRESETS[name]) == count


@pytest.mark.parametrize(
    ("name", "multiply_adds"), [("resnet18", 1.814e9), ("resnet50", 4.089e9), ("resnet20", 40.55e6)]
)
def test_forward_flops_are_twice_the_published_multiply_adds(name: str, multiply_adds: float) -> None:
    assert training_flops(PRESETS[name], 1) / 3 / 2 == pytest.approx(multiply_adds, rel=0.002)


def test_names_are_torchvisions() -> None:
    names = [name for layer in layers(PRESETS["resnet50"]) for name, _ in layer.parameters]
    assert names[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert "layer2.0.downsample.0.weight" in names
    assert "layer2.0.downsample.1.bias" in names
    assert "layer2.1.downsample.0.weight" not in names
    assert names[-2:] == ["fc.weight", "fc.bias"]
    assert len(names) == len(set(names))


def test_parts_have_all_parameters() -> None:
    parts = parameters_by_part(PRESETS["resnet18"])
    assert list(parts) == ["stem", "layer1", "layer2", "layer3", "layer4", "fc"]
    assert sum(parts.values()) == parameter_count(PRESETS["resnet18"])
