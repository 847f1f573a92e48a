"""Loads a model from a run's folder or an exported one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol, TypeVar

from echelon.data.held_out import longest_part
from echelon.data.tokeniser import Tokeniser
from echelon.errors import UserError
from echelon.inference.decoding import Decoding, Engine
from echelon.inference.exported_model import ExportManifest, PackageFolder, TextRules
from echelon.inference.pictures import PictureEngine, PictureRules, read_rules
from echelon.launch.cores import available_cores
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.recipe.tasks import Use, find_task, task_name
from echelon.runfolder import RunFolder

TextModel = tuple[Engine, Tokeniser, TextRules, Decoding]
"""What a Translator is made of."""
PictureModel = tuple[PictureEngine, PictureRules]
"""What a Classifier is made of."""
R = TypeVar("R", bound=Recipe)


class UseDeclaration(Protocol):
    """What a task says about the use of its models."""

    @property
    def use(self) -> Use: ...


def load_text_model(path: Path, checkpoint: str | None, threads: int | None) -> TextModel:
    """A run folder's or an exported folder's model; UserError if there is neither."""
    package, run = PackageFolder(path), RunFolder(path)
    if package.is_there():
        _refuse_checkpoint(checkpoint, path)
        return _load_package(package, threads)
    return _load_run(run.require(), checkpoint, threads)


def load_picture_model(path: Path, checkpoint: str | None, threads: int | None) -> PictureModel:
    """Load a model that classifies images."""
    package, run = PackageFolder(path), RunFolder(path)
    if package.is_there():
        _refuse_checkpoint(checkpoint, path)
        return _load_classifier_package(package, threads)
    from echelon.inference.torch_pictures import load_run_pictures

    load_usable(ClassificationRecipe, run.require())
    rules = read_rules(run)
    return load_run_pictures(run, rules, checkpoint, threads), rules


def task_of_model(path: Path) -> str:
    """The task of a run's or an exported folder's model; UserError if it is neither."""
    package = PackageFolder(path)
    if package.is_there():
        return package.read_manifest().task
    return load_recipe(RunFolder(path).require().recipe).task


def load_usable(kind: type[R], run: RunFolder) -> R:
    """The recipe of a run; UserError naming the verb to use instead if it is for another kind of recipe."""
    recipe = load_recipe(run.recipe)
    if not isinstance(recipe, kind):
        theirs: UseDeclaration = find_task(recipe.task)
        ours: UseDeclaration = find_task(task_name(kind))
        raise UserError(
            f"{run.path}: {theirs.use.does} and does not {ours.use.do}; use `echelon {theirs.use.verb}`"
        )
    return recipe


def _load_run(run: RunFolder, checkpoint: str | None, threads: int | None) -> TextModel:
    """A run's model, computed by PyTorch."""
    from echelon.inference.torch_models import load_run_engine

    recipe = load_usable(TranslationRecipe, run)
    tokeniser = Tokeniser.load(run.tokeniser)
    engine = load_run_engine(run, recipe, tokeniser.size, checkpoint, threads)
    return engine, tokeniser, text_rules(recipe), recipe_decoding(recipe)


def text_rules(recipe: TranslationRecipe) -> TextRules:
    data = recipe.data
    return TextRules(data.source_language, data.target_language, data.clean.unicode, longest_part(recipe))


def recipe_decoding(recipe: TranslationRecipe) -> Decoding:
    """The recipe's search for its final score."""
    return Decoding(beam=recipe.evaluate.beam, length_penalty=recipe.evaluate.length_penalty)


def default_threads() -> int:
    """Return OMP_NUM_THREADS if it is set, and otherwise the number of cores that this process may use."""
    wish = os.environ.get("OMP_NUM_THREADS", "")
    return int(wish) if wish.isdecimal() and int(wish) > 0 else available_cores()


def _load_package(package: PackageFolder, threads: int | None) -> TextModel:
    manifest = package.read_manifest()
    package.verify()
    if manifest.text is None:
        raise UserError(f"{package.path}: is a model for {manifest.task}, not for translation")
    tokeniser = Tokeniser.load(package.tokeniser)
    engine = _package_engine(package, manifest, tokeniser, threads)
    decoding = Decoding(
        beam=int(manifest.decoding["beam"]), length_penalty=manifest.decoding["length_penalty"]
    )
    return engine, tokeniser, manifest.text, decoding


def _package_engine(
    package: PackageFolder, manifest: ExportManifest, tokeniser: Tokeniser, threads: int | None
) -> Engine:
    match manifest.format:
        case "safetensors":
            from echelon.inference.torch_models import load_package_engine

            return load_package_engine(package, tokeniser.size, threads)
        case "ctranslate2":
            from echelon.inference.ctranslate2_engine import CTranslate2Engine

            return CTranslate2Engine(package.ctranslate2, threads or default_threads())
        case "huggingface":
            raise UserError(
                f"{package.path}: is a model for transformers; `echelon convert huggingface {package.path}` makes a "
                "run of it, which `echelon translate` and `serve` take"
            )
        case "onnx":
            raise UserError(
                f"{package.path}: is an ONNX model; its own translate.py or ONNX Runtime runs it. "
                "For `echelon translate` and `serve` export to safetensors or ctranslate2"
            )


def _load_classifier_package(package: PackageFolder, threads: int | None) -> PictureModel:
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

            engine = OnnxPictures(package.network, threads or default_threads())
    return engine, manifest.pictures


def _refuse_checkpoint(checkpoint: str | None, path: Path) -> None:
    if checkpoint is not None:
        raise UserError(f"{path}: is an exported model, which has one checkpoint; leave --checkpoint out")
