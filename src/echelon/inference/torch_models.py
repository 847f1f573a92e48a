"""Models with their weights, from a run or an exported folder. Imports torch."""

from __future__ import annotations

import safetensors.torch
import torch
from safetensors import SafetensorError

from echelon.errors import PackageError
from echelon.files.checkpoint_layout import default_choice
from echelon.inference.exported_model import PackageFolder
from echelon.inference.torch_engine import TorchEngine, computes_bf16
from echelon.models.transformer import Transformer
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.translation import build_transformer
from echelon.train.precision import Precision
from echelon.train.weights import Weights, choose_weights, load_weights, require_size
from echelon.train.worker import choose_device


def load_run_engine(
    run: RunFolder, recipe: TranslationRecipe, vocabulary: int, checkpoint: str | None, threads: int | None
) -> TorchEngine:
    """A run's chosen checkpoint, ready to translate."""
    weights = choose_weights(run, checkpoint or default_choice(run.checkpoints, recipe.evaluate.final))
    return _engine(recipe, build_model(recipe, vocabulary, weights), threads)


def load_package_engine(package: PackageFolder, vocabulary: int, threads: int | None) -> TorchEngine:
    """An exported model of the safetensors format, ready to translate."""
    return _engine(load_translation_recipe(package.recipe), load_package_model(package, vocabulary), threads)


def load_package_model(package: PackageFolder, vocabulary: int) -> Transformer:
    """The same as a plain module, in float32."""
    try:
        tensors = safetensors.torch.load_file(package.weights)
    except (OSError, SafetensorError) as error:
        raise PackageError(f"{package.weights}: cannot be used: {error}") from error
    return build_model(
        load_translation_recipe(package.recipe), vocabulary, Weights(tensors, 0, package.weights.name)
    )


def build_model(recipe: TranslationRecipe, vocabulary: int, weights: Weights) -> Transformer:
    """The recipe's model with these weights, in evaluation mode."""
    require_size(recipe, weights)
    model = build_transformer(recipe, vocabulary).eval()
    load_weights(model, weights)
    return model


def _engine(recipe: TranslationRecipe, model: Transformer, threads: int | None) -> TorchEngine:
    if threads is not None:
        torch.set_num_threads(threads)
    device = choose_device()
    is_low = recipe.train.precision != "float32" and computes_bf16(device)
    return TorchEngine(model, Precision("bf16" if is_low else "float32", device), device)
