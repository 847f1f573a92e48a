"""A run folder with a small classifier, made within the test."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from echelon.files.checkpoint_layout import Best
from echelon.models.batch_norm import BatchNorm
from echelon.models.speednet import SpeedNet
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder, write_json
from echelon.tasks.classification import build_network
from tests.sample_image_recipe import sample_image_recipe
from tests.small_run import keep_model

CLASSES = ("cat", "dog", "owl", "fox", "bee", "elk", "ant", "cow", "hen", "pig")


def make_small_image_run(path: Path, *overrides: str, pixels: int = 32) -> RunFolder:
    """A run whose network has learnt nothing, but has weights and statistics as if it had."""
    recipe = sample_image_recipe(*overrides)
    run = RunFolder(path)
    run.create()
    run.recipe.write_text(dump_recipe(recipe))
    torch.manual_seed(4)
    model = build_network(recipe, len(CLASSES), pixels)
    if isinstance(model, SpeedNet):
        model.whiten.fit(torch.randn(20, 3, pixels, pixels))
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    keep_model(run, model, Best(5, "top1", 10.0))
    normalisation = {"mean": [120.0, 121.0, 122.0], "deviation": [60.0, 61.0, 62.0]}
    write_json(
        run.images,
        {"classes": list(CLASSES), "pixels": pixels, "normalisation": normalisation, "shorter": pixels},
    )
    scores = {"top1": 12.5, "top5": 52.5, "loss": 2.3, "signature": "test:8", "checkpoint": "step-00000005"}
    write_json(run.score_file("test"), {**scores, "step": 5, "split": "test"})
    return run


def picture(seed: int, pixels: int = 32) -> bytes:
    """A PNG of noise."""
    values = np.random.default_rng(seed).integers(0, 256, (pixels, pixels, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()
