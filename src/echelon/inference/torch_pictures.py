"""Classifying with PyTorch, from a run or an exported folder. Imports torch."""

from __future__ import annotations

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import nn

from echelon.data.images.image_store import Pixels
from echelon.errors import PackageError
from echelon.files.checkpoint_layout import default_choice
from echelon.inference.exported_model import PackageFolder
from echelon.inference.pictures import PictureRules
from echelon.inference.torch_engine import computes_bf16
from echelon.recipe.loading import load_classification_recipe
from echelon.recipe.schema import ClassificationRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.classification import Normaliser, build_network, classify
from echelon.train.precision import Precision
from echelon.train.weights import Weights, choose_weights, load_weights, require_size
from echelon.train.worker import choose_device


class TorchPictures:
    """Implements `PictureEngine`; in bf16 if the recipe trained in 16 bits and the processor supports it."""

    name = "torch"

    def __init__(self, model: nn.Module, recipe: ClassificationRecipe, rules: PictureRules) -> None:
        device = choose_device()
        is_low = recipe.train.precision != "float32" and computes_bf16(device)
        self._precision = Precision("bf16" if is_low else "float32", device)
        self._model = model.to(device).eval()
        self._normalise = Normaliser(rules.normalisation, device)
        self._evaluate = recipe.evaluate

    @torch.inference_mode()
    def probabilities(self, pictures: Pixels) -> NDArray[np.float32]:
        with self._precision.autocast():
            logits_NK = classify(self._model, self._normalise(pictures), self._evaluate)
        result: NDArray[np.float32] = logits_NK.softmax(1).cpu().numpy()
        return result


def load_run_pictures(
    run: RunFolder, rules: PictureRules, checkpoint: str | None, threads: int | None
) -> TorchPictures:
    """A run's chosen checkpoint, ready to classify."""
    recipe = load_classification_recipe(run.recipe)
    weights = choose_weights(run, checkpoint or default_choice(run.checkpoints, recipe.evaluate.final))
    return _engine(recipe, rules, weights, threads)


def load_package_pictures(package: PackageFolder, rules: PictureRules, threads: int | None) -> TorchPictures:
    """An exported model of the safetensors format, ready to classify."""
    try:
        tensors = safetensors.torch.load_file(package.weights)
    except (OSError, SafetensorError) as error:
        raise PackageError(f"{package.weights}: cannot be used: {error}") from error
    recipe = load_classification_recipe(package.recipe)
    return _engine(recipe, rules, Weights(tensors, 0, package.weights.name), threads)


def build_classifier(recipe: ClassificationRecipe, rules: PictureRules, weights: Weights) -> nn.Module:
    """The recipe's network with these weights, in evaluation mode."""
    require_size(recipe, weights)
    model = build_network(recipe, len(rules.classes), rules.pixels).eval()
    load_weights(model, weights)
    return model


def _engine(
    recipe: ClassificationRecipe, rules: PictureRules, weights: Weights, threads: int | None
) -> TorchPictures:
    if threads is not None:
        torch.set_num_threads(threads)
    return TorchPictures(build_classifier(recipe, rules, weights), recipe, rules)
