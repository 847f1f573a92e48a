"""Exports a classifier as safetensors or ONNX, compared with PyTorch before it is kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from echelon.data.images.batches import take_middle
from echelon.data.images.image_store import Pixels, open_images
from echelon.errors import DataError, PackageError, UserError
from echelon.export.card import CardFacts
from echelon.export.export_folder import ExportOptions, manifest_of, packaged, summarise, write_scores
from echelon.export.picture_card import render_picture_card
from echelon.export.picture_graph import write_picture_onnx
from echelon.files.checkpoint_layout import default_choice
from echelon.inference.exported_model import PackageFolder
from echelon.inference.model_folder import default_threads
from echelon.inference.onnx_pictures import OnnxPictures
from echelon.inference.pictures import PictureRules, read_rules
from echelon.inference.torch_pictures import build_classifier
from echelon.recipe.schema import ClassificationRecipe
from echelon.runfolder import RunFolder, read_file, read_json, write_atomically
from echelon.tasks.classification import Normaliser, classify
from echelon.train.weights import Weights, choose_weights

TOLERANCE = 1e-3
"""How far a probability may be from PyTorch's float32."""
_CHECKED_PICTURES = 64


@dataclass(frozen=True)
class PictureCheck:
    """How a written model compares with PyTorch's."""

    pictures: int
    largest_difference: float
    """Of a probability."""
    equal_classes: int
    """Pictures whose likeliest class is the same."""


def export_classifier(run: RunFolder, recipe: ClassificationRecipe, options: ExportOptions) -> dict[str, Any]:
    """Write a run's model and check it; return the keys of `export --json`. Nothing is left if it fails."""
    if options.format in ("ctranslate2", "huggingface"):
        raise UserError(
            f"{options.format} is for Transformers; export a classifier with --format onnx or safetensors"
        )
    if options.edge:
        raise UserError(
            "edge bundles are for translation; --format onnx makes one file that ONNX Runtime runs"
        )
    options.show(0.0, "loading the model")
    rules = read_rules(run)
    weights = choose_weights(
        run, options.checkpoint or default_choice(run.checkpoints, recipe.evaluate.final)
    )
    model = build_classifier(recipe, rules, weights)
    with packaged(options) as package:
        options.show(0.25, "writing the model")
        _write_model(package, model, rules, recipe, options)
        sizes = {"classes": len(rules.classes), "pixels": rules.pixels}
        manifest = replace(manifest_of(recipe, weights, model, options, sizes), pictures=rules)
        package.write_manifest(asdict(manifest))
        write_atomically(package.recipe, read_file(run.recipe))
        pictures = real_pictures(run, rules)
        options.show(0.5, f"classifying {len(pictures)} images with PyTorch")
        wanted = torch_probabilities(model, recipe, rules, pictures)
        options.show(0.75, "classifying them with the written model")
        check = compare_pictures(_read_back(package, recipe, rules, pictures), wanted)
        scores = write_scores(package, run, weights)
        facts = CardFacts(manifest, recipe, scores, package.num_bytes(), options.licence, asdict(check))
        write_atomically(package.card, render_picture_card(facts))
    return summarise(options, manifest, asdict(check))


def _write_model(
    package: PackageFolder,
    model: nn.Module,
    rules: PictureRules,
    recipe: ClassificationRecipe,
    options: ExportOptions,
) -> None:
    if options.format == "onnx":
        write_picture_onnx(model, rules, recipe.evaluate, package.network)
    else:
        tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
        safetensors.torch.save_file(tensors, package.weights)


def real_pictures(run: RunFolder, rules: PictureRules) -> Pixels:
    """Pictures to compare on: the run's test or validation set, or noise if the data are elsewhere."""
    try:
        prepared = open_images(Path(read_json(run.data)["folder"]))
        store = prepared.splits.get("test") or prepared.splits.get("valid") or prepared.train
    except (OSError, ValueError, KeyError, TypeError, DataError):
        shape = (_CHECKED_PICTURES, rules.pixels, rules.pixels, 3)
        return np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    every = max(1, len(store) // _CHECKED_PICTURES)
    return take_middle(store, np.arange(0, len(store), every)[:_CHECKED_PICTURES], rules.pixels)


def torch_probabilities(
    model: nn.Module, recipe: ClassificationRecipe, rules: PictureRules, pictures: Pixels
) -> NDArray[np.float32]:
    """PyTorch's probabilities in float32, the reference."""
    with torch.inference_mode():
        logits_NK = classify(model, Normaliser(rules.normalisation)(pictures), recipe.evaluate)
    result: NDArray[np.float32] = logits_NK.softmax(1).numpy()
    return result


def _read_back(
    package: PackageFolder, recipe: ClassificationRecipe, rules: PictureRules, pictures: Pixels
) -> NDArray[np.float32]:
    """The probabilities of the written model."""
    if package.network.exists():
        return OnnxPictures(package.network, default_threads()).probabilities(pictures)
    written = Weights(safetensors.torch.load_file(package.weights), 0, package.weights.name)
    model = build_classifier(recipe, rules, written)
    return torch_probabilities(model, recipe, rules, pictures)


def compare_pictures(written: NDArray[np.float32], wanted: NDArray[np.float32]) -> PictureCheck:
    """PackageError if two models' probabilities differ by more than rounding explains."""
    difference = float(np.abs(written - wanted).max())
    if not difference <= TOLERANCE:
        raise PackageError(
            f"the exported model does not compute what PyTorch computes: probabilities differ by up to "
            f"{difference:.3g} on {len(wanted)} images; nothing was written"
        )
    return PictureCheck(len(wanted), difference, int((written.argmax(1) == wanted.argmax(1)).sum()))
