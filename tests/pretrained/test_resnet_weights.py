"""State dicts of ResNets as torchvision and timm write them become networks that compute the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import echelon
from echelon import Classifier
from echelon.errors import UserError
from echelon.inference.pictures import read_rules
from echelon.inference.torch_pictures import build_classifier
from echelon.pretrained.conversion import convert_pretrained
from echelon.recipe.loading import load_classification_recipe
from echelon.runfolder import RunFolder
from echelon.train.weights import choose_weights
from tests.pretrained.plain_resnet import PLANS, SMALL, make_plain
from tests.sample_image_recipe import sample_image_recipe

LARGE = {"resnet101", "resnet152", "wide_resnet50_2"}


def build(run: RunFolder) -> torch.nn.Module:
    return build_classifier(
        load_classification_recipe(run.recipe), read_rules(run), choose_weights(run, "last")
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in PLANS]
)
def test_logits_agree_and_no_weight_changes(tmp_path: Path, name: str) -> None:
    theirs = make_plain(name)
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    run = convert_pretrained(tmp_path / "weights.safetensors", tmp_path / "run").run
    ours, pictures = build(run), torch.randn(2, 3, 32, 32)

    with torch.no_grad():
        expected, found = theirs(pictures), ours(pictures)

    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    kept = ours.state_dict()
    for key, tensor in theirs.state_dict().items():
        assert key.endswith("num_batches_tracked") or torch.equal(kept[key], tensor)


def test_a_folder_of_timm_says_what_its_pictures_and_classes_are(tmp_path: Path) -> None:
    folder = tmp_path / "resnet18.name"
    folder.mkdir()
    safetensors.torch.save_file(make_plain("resnet18").state_dict(), folder / "model.safetensors")
    settings: dict[str, Any] = {
        "input_size": [3, 160, 160],
        "crop_pct": 0.8,
        "mean": [0.5, 0.25, 0.5],
        "std": [0.5, 0.5, 0.25],
        "label_names": list("abcdefg"),
    }
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": settings}))

    run = convert_pretrained(folder, tmp_path / "run").run
    rules = read_rules(run)

    assert rules.classes == tuple("abcdefg")
    assert (rules.pixels, rules.shorter) == (160, 200)
    assert rules.normalisation.mean == (127.5, 63.75, 127.5)
    assert rules.normalisation.deviation == (127.5, 127.5, 63.75)
    assert Classifier.load(run.path).rules.classes == rules.classes


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fc.weight": None}, "is no ResNet that Echelon knows"),
        ({"layer1.0.conv1.weight": torch.zeros(64, 64, 1, 1)}, "is none of Echelon's ResNets"),
        ({"layer9.0.conv1.weight": torch.zeros(1)}, "is none of Echelon's ResNets"),
        ({"layer1.0.se.fc1.weight": torch.zeros(1)}, "is none of Echelon's ResNets"),
    ],
)
def test_another_network_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    tensors = make_plain("resnet18").state_dict() | change
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.torch.save_file(kept, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=says):
        convert_pretrained(tmp_path / "other.safetensors", tmp_path / "run")


SETTINGS = (
    "train.steps=2",
    "evaluate.every=2",
    "track.tensorboard=false",
    "model.preset=resnet18",
    "model.width=8",
    "model.stem=cifar",
)


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "weights.safetensors"
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    safetensors.torch.save_file(make_plain(SMALL).state_dict(), path)
    return path


def test_fine_tuning_begins_a_new_last_layer_and_leaves_frozen_parts_alone(
    tmp_path: Path, weights: Path
) -> None:
    recipe = sample_image_recipe(
        *SETTINGS, f"train.init_from={weights}", 'train.freeze=["conv1","bn1","layer1","layer2"]'
    )

    one = echelon.train(recipe, workers=1, run=tmp_path / "one", show=False)
    two = echelon.train(recipe, workers=2, run=tmp_path / "two", show=False)

    before = safetensors.torch.load_file(weights)
    after, other = (choose_weights(RunFolder(run.path), "last").tensors for run in (one, two))
    assert after["fc.weight"].shape[0] == 10 != before["fc.weight"].shape[0]
    for name in ("conv1.weight", "bn1.weight", "layer1.1.conv2.weight", "layer2.0.downsample.0.weight"):
        assert torch.equal(after[name], before[name])
    for name in ("layer3.0.conv1.weight", "layer4.1.bn2.bias"):
        assert not torch.equal(after[name], before[name])
    assert all(torch.equal(after[name], other[name]) for name in after)
