"""Image classification on the same engine: any number of workers, resumed runs, folders, and the verbs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from echelon.data.images.prepare import prepare_images
from echelon.monitor.records import read_records
from echelon.recipe.image_sections import ImageData
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import list_checkpoints
from tests.integration.runs import Echelon, assert_same_end

RECIPE = """\
version = 1
name = "pictures"
task = "classification"
[data]
source = "digits"
[data.augment]
pad = 1
cutout = 2
[model]
preset = "resnet20"
width = 8
[train]
steps = 16
batch_images = 160
slots = 5
[optimiser]
kind = "sgd"
nesterov = true
weight_decay = 1e-4
[schedule]
kind = "one_cycle"
learning_rate = 0.02
[evaluate]
every = 8
[checkpoint]
every = 8
[track]
tensorboard = false
"""
TrainPictures = Callable[..., RunFolder]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


@pytest.fixture
def train_pictures(recipe: Path, tmp_path: Path, echelon: Echelon) -> TrainPictures:
    def train(name: str, *settings: str, workers: int = 1) -> RunFolder:
        run = RunFolder(tmp_path / name)
        sets = [word for setting in settings for word in ("--set", setting)]
        echelon("train", recipe, "--run", run.path, "--workers", str(workers), *sets)
        return run

    return train


@pytest.mark.slow
def test_the_digits_are_learnt_by_the_recipe_as_it_is(
    tmp_path: Path, echelon: Echelon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHELON_CACHE", str(tmp_path / "cache"))
    recipe = Path(__file__).parents[2] / "recipes" / "digits.toml"
    result = json.loads(echelon("train", recipe, "--run", tmp_path / "run", "--json").stdout)
    assert result["test"]["top1"] >= 98


def records(run: RunFolder, kind: str) -> list[dict[str, float]]:
    return [record for record in read_records(run.worker_records(0)) if record["kind"] == kind]


@pytest.mark.slow
def test_one_two_and_three_workers_end_with_the_same_bits(train_pictures: TrainPictures) -> None:
    """Five slots; the running statistics of BatchNorm, the losses and the scores too."""
    alone = train_pictures("run-1")
    curve = [record["loss"] for record in records(alone, "step")]
    assert curve[-1] < 0.9 * curve[0], "a curve that does not move would prove nothing"
    for workers in (2, 3):
        together = train_pictures(f"run-{workers}", workers=workers)
        assert [record["loss"] for record in records(together, "step")] == curve, f"{workers} workers"
        assert_same_end(together, alone)
        mine, theirs = (records(run, "valid")[-1] for run in (alone, together))
        assert theirs["loss"] == mine["loss"]


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(train_pictures: TrainPictures) -> None:
    schedule = "schedule={kind = 'piecewise', boundaries = [12], learning_rates = [0.03, 0.01]}"
    whole = train_pictures("whole", schedule, workers=2)
    train_pictures("halves", schedule, "train.steps=8", workers=2)
    resumed = train_pictures("halves", schedule, "train.steps=16", workers=2)
    assert [record["step"] for record in records(resumed, "step")] == list(range(1, 17))
    assert_same_end(whole, resumed)


@pytest.mark.slow
def test_scores_classes_and_pictures_classified(
    train_pictures: TrainPictures, recipe: Path, echelon: Echelon, tmp_path: Path
) -> None:
    run = train_pictures("run", "train.steps=60", "schedule.learning_rate=0.2", workers=2)
    scores = json.loads(run.score_file("test").read_text())
    assert scores["top1"] > 60
    assert scores["top5"] >= scores["top1"]
    assert sum(map(sum, scores["confusion"])) == 360
    assert len(run.outputs_file("test").read_text().splitlines()) == 360

    evaluated = json.loads(echelon("evaluate", run.path, "--json").stdout)
    assert evaluated["top1"] == pytest.approx(scores["top1"])
    words = echelon("evaluate", run.path, "--split", "valid").stdout
    assert "top-1" in words
    assert "classes with the lowest accuracy:" in words

    prepared = prepare_images(ImageData(source="digits"), recipe_folder=tmp_path, cache=tmp_path / "cache")
    test = prepared.splits["test"]
    for index in range(8):
        Image.fromarray(np.array(test.picture(index))).save(tmp_path / f"{index}.png")
    files = [tmp_path / f"{index}.png" for index in range(8)]
    found = json.loads(echelon("classify", run.path, *files, "--json").stdout)["pictures"]
    guesses = [entry["classes"][0]["class"] for entry in found]
    assert guesses == run.outputs_file("test").read_text().splitlines()[:8]
    assert all(0 < entry["classes"][0]["probability"] <= 1 for entry in found)
    (tmp_path / "no.png").write_text("no picture")
    assert "no.png: is not an image" in echelon("classify", run.path, tmp_path / "no.png", status=2).stderr
    assert "use `echelon classify`" in echelon("translate", run.path, status=2).stderr
    listed = echelon("runs", tmp_path).stdout
    assert "top-1" in listed


@pytest.mark.slow
def test_a_folder_in_imagenets_layout_trains_from_end_to_end(
    train_pictures: TrainPictures, real_data: Path
) -> None:
    run = train_pictures(
        "folder",
        "data={source = 'folder', path = '%s', pixels = 56, augment = {min_area = 0.25, flip = 'random'}}"
        % (real_data / "tiny-imagenet-sample.tar"),
        "model={preset = 'resnet18', width = 8}",
        "train.steps=20",
        workers=2,
    )
    losses = [record["loss"] for record in records(run, "step")]
    assert min(losses[-5:]) < min(losses[:5])
    assert records(run, "valid")[-1]["top5"] > 30


@pytest.mark.slow
def test_float16_trains_with_float32_norms_and_a_loss_scale(train_pictures: TrainPictures) -> None:
    run = train_pictures("half", "train.precision=fp16", "train.steps=12", "train.average_decay=0.9")
    losses = [record["loss"] for record in records(run, "step")]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    last = list_checkpoints(run.checkpoints)[-1]
    assert last.load_state().precision["scale"] <= 2.0**16
    kinds = {tensor.dtype for tensor in (last.load_model() | last.load_optimiser()).values()}
    assert kinds <= {torch.float32, torch.int64}
    assert any(name.startswith("trained/") for name in last.load_optimiser())
