"""Exported classifiers compute what PyTorch computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from echelon import Classifier, Translator
from echelon.errors import PackageError, UserError
from echelon.export import classifiers
from echelon.export.export import export_run
from echelon.export.export_folder import ExportOptions
from echelon.export.picture_graph import write_picture_onnx
from echelon.runfolder import read_json, write_json
from tests.small_image_run import make_small_image_run, picture

NETWORKS = {
    "thin": ("model={preset = 'resnet20', width = 8}",),
    "projections": ("model={preset = 'resnet18', width = 8}",),
    "bottlenecks": ("model={preset = 'resnet50', width = 8}", "evaluate.flip=true"),
    "speednet": (
        "model={preset = 'speednet', width = 8}",
        "data.pixels=32",
        "evaluate.flip=true",
        "evaluate.shift=1",
    ),
}


@pytest.mark.parametrize("network", NETWORKS)
def test_onnx_computes_what_pytorch_computes(tmp_path: Path, network: str) -> None:
    run = make_small_image_run(tmp_path / "run", *NETWORKS[network], pixels=32)
    told: list[float] = []
    options = ExportOptions("onnx", tmp_path / "out", show=lambda share, doing: told.append(share))
    result = export_run(run, options)
    assert told == [0.0, 0.25, 0.5, 0.75]
    assert result["check"]["largest_difference"] < 1e-4
    assert result["check"]["equal_classes"] == result["check"]["pictures"] == 64

    ours, theirs = Classifier.load(run.path), Classifier.load(tmp_path / "out")
    assert theirs.engine.name == "onnxruntime"
    pictures = [picture(seed) for seed in range(5)]
    for mine, other in zip(ours.classify(pictures, 3), theirs.classify(pictures, 3), strict=True):
        assert [guess.name for guess in mine] == [guess.name for guess in other]
        assert mine[0].probability == pytest.approx(other[0].probability, abs=1e-4)


def test_safetensors_are_read_back_and_the_card_says_what_it_is(tmp_path: Path) -> None:
    run = make_small_image_run(tmp_path / "run")
    export_run(run, ExportOptions("safetensors", tmp_path / "out", licence="cc-by-4.0"))
    exported = Classifier.load(tmp_path / "out")
    assert exported.engine.name == "torch"
    assert exported.classify([picture(1)]) == Classifier.load(run.path).classify([picture(1)])
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Sorts images into 10 classes: cat, dog" in card
    assert "| test | 12.50% | 52.50% |" in card
    assert "Signature: `test:8`." in card
    with pytest.raises(UserError, match="not for translation"):
        Translator.load(tmp_path / "out")


def test_the_card_has_the_scores_of_the_exported_checkpoint_only(tmp_path: Path) -> None:
    """Scores of another checkpoint, or of a trial with other settings, were shown as those of the model."""
    run = make_small_image_run(tmp_path / "run")
    own = read_json(run.score_file("test"))
    write_json(run.score_file("test"), own | {"top1": 93.89, "checkpoint": "step-00000001", "step": 1})
    write_json(run.score_file("test-flip"), own | {"top1": 96.94, "settings": ["evaluate.flip=true"]})
    export_run(run, ExportOptions("safetensors", tmp_path / "unscored"))
    card = (tmp_path / "unscored" / "README.md").read_text()
    assert "None: `echelon evaluate` has not scored this checkpoint." in card
    run.worker_records(0).write_text(json.dumps({"kind": "score", "time": 1.0, **own}) + "\n")
    export_run(run, ExportOptions("safetensors", tmp_path / "scored"))
    card = (tmp_path / "scored" / "README.md").read_text()
    assert "| test | 12.50% | 52.50% |" in card
    assert "9" not in card[card.index("## Scores") : card.index("## Limits")]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"format": "ctranslate2"}, "--format onnx"), ({"format": "onnx", "edge": True}, "for translation")],
)
def test_what_a_classifier_cannot_be_is_said(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    run = make_small_image_run(tmp_path / "run")
    with pytest.raises(UserError, match=message):
        export_run(run, ExportOptions(to=tmp_path / "out", **options))


def test_a_wrong_export_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_small_image_run(tmp_path / "run")

    def spoil(model: torch.nn.Module, *arguments: Any) -> None:
        weight = model.get_parameter("fc.weight").detach()
        kept = weight.clone()
        weight.zero_()
        write_picture_onnx(model, *arguments)
        weight.copy_(kept)

    monkeypatch.setattr(classifiers, "write_picture_onnx", spoil)
    with pytest.raises(PackageError, match="does not compute what PyTorch computes"):
        export_run(run, ExportOptions("onnx", tmp_path / "out"))
    assert not (tmp_path / "out").exists()
