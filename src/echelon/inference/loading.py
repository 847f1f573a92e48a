"""From a folder, a run's or an exported one, to a model that works."""

from __future__ import annotations

import os
from pathlib import Path

from echelon.data.held_out import longest_part
from echelon.data.tokeniser import Tokeniser
from echelon.errors import UserError
from echelon.inference.classifier import Classifier
from echelon.inference.decoding import Decoding, Engine
from echelon.inference.package import Manifest, PackageFolder, TextRules
from echelon.inference.pictures import PictureEngine, read_rules
from echelon.inference.translator import Translator
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.runfolder import RunFolder


def load_translator(path: Path, *, checkpoint: str | None, threads: int | None) -> Translator:
    """A run folder's or an exported folder's model; UserError where there is neither."""
    package, run = PackageFolder(path), RunFolder(path)
    if package.is_there():
        _refuse_checkpoint(checkpoint, path)
        return _load_package(package, threads)
    return load_run(run.require(), checkpoint, threads)


def load_classifier(path: Path, *, checkpoint: str | None, threads: int | None) -> Classifier:
    """The same of a model that classifies pictures."""
    package, run = PackageFolder(path), RunFolder(path)
    if package.is_there():
        _refuse_checkpoint(checkpoint, path)
        return _load_classifier_package(package, threads)
    from echelon.inference.torch_pictures import load_run_pictures

    if load_recipe(run.require().recipe).task != "classification":
        raise UserError(f"{run.path}: translates and does not classify pictures; use `echelon translate`")
    rules = read_rules(run)
    return Classifier(load_run_pictures(run, rules, checkpoint, threads), rules)


def is_classifier(path: Path) -> bool:
    """Whether a run's or an exported folder holds a model for pictures; UserError where it is neither."""
    package = PackageFolder(path)
    if package.is_there():
        return package.read_manifest().task == "classification"
    return load_recipe(RunFolder(path).require().recipe).task == "classification"


def load_run(run: RunFolder, checkpoint: str | None, threads: int | None = None) -> Translator:
    """A run's model, computed by PyTorch."""
    from echelon.inference.torch_models import load_run_engine

    recipe = load_recipe(run.recipe)
    if not isinstance(recipe, TranslationRecipe):
        raise UserError(f"{run.path}: classifies pictures and does not translate; use `echelon classify`")
    tokeniser = Tokeniser.load(run.tokeniser)
    engine = load_run_engine(run, recipe, tokeniser.size, checkpoint, threads)
    return Translator(engine, tokeniser, text_rules(recipe), recipe_decoding(recipe))


def text_rules(recipe: TranslationRecipe) -> TextRules:
    data = recipe.data
    return TextRules(data.source_language, data.target_language, data.clean.unicode, longest_part(recipe))


def recipe_decoding(recipe: TranslationRecipe) -> Decoding:
    """The recipe's search for its final score."""
    return Decoding(beam=recipe.evaluate.beam, length_penalty=recipe.evaluate.length_penalty)


def available_cores() -> int:
    """Processor cores that this process may use; OMP_NUM_THREADS says how many it should."""
    wish = os.environ.get("OMP_NUM_THREADS", "")
    if wish.isdecimal() and int(wish) > 0:
        return int(wish)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load_package(package: PackageFolder, threads: int | None) -> Translator:
    manifest = package.read_manifest()
    package.verify()
    _refuse_other_tasks(manifest.task, package.path)
    assert manifest.text is not None
    tokeniser = Tokeniser.load(package.tokeniser)
    engine = _package_engine(package, manifest, tokeniser, threads)
    decoding = Decoding(
        beam=int(manifest.decoding["beam"]), length_penalty=manifest.decoding["length_penalty"]
    )
    return Translator(engine, tokeniser, manifest.text, decoding)


def _package_engine(
    package: PackageFolder, manifest: Manifest, tokeniser: Tokeniser, threads: int | None
) -> Engine:
    match manifest.format:
        case "safetensors":
            from echelon.inference.torch_models import load_package_engine

            return load_package_engine(package, tokeniser.size, threads)
        case "ctranslate2":
            from echelon.inference.ctranslate2_engine import CTranslate2Engine

            return CTranslate2Engine(package.ctranslate2, threads or available_cores())
        case "onnx":
            raise UserError(
                f"{package.path}: is an ONNX model; its own translate.py or ONNX Runtime runs it. "
                "For `echelon translate` and `serve` export to safetensors or ctranslate2"
            )


def _load_classifier_package(package: PackageFolder, threads: int | None) -> Classifier:
    manifest = package.read_manifest()
    package.verify()
    if manifest.pictures is None:
        raise UserError(f"{package.path}: is a model for {manifest.task}, not for classification")
    match manifest.format:
        case "safetensors":
            from echelon.inference.torch_pictures import load_package_pictures

            engine: PictureEngine = load_package_pictures(package, manifest.pictures, threads)
        case _:
            from echelon.inference.onnx_pictures import OnnxPictures

            engine = OnnxPictures(package.network, threads or available_cores())
    return Classifier(engine, manifest.pictures)


def _refuse_checkpoint(checkpoint: str | None, path: Path) -> None:
    if checkpoint is not None:
        raise UserError(f"{path}: is an exported model, which has one checkpoint; leave --checkpoint out")


def _refuse_other_tasks(task: str, path: Path) -> None:
    if task != "translation":
        raise UserError(f"{path}: is a model for {task}, not for translation")
