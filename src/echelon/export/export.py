"""Exports a run's model, compared with PyTorch before it is kept."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch

from echelon.data.cleaning import REPLACEMENTS
from echelon.data.prepared import open_prepared
from echelon.data.tokeniser import EOS, UNK, Tokeniser
from echelon.errors import DataError, UserError
from echelon.export.card import CardFacts, render_card
from echelon.export.ctranslate2_format import write_ctranslate2
from echelon.export.export_folder import ExportOptions, manifest_of, packaged, summarise, write_scores
from echelon.export.huggingface_format import read_huggingface, write_huggingface
from echelon.export.onnx_format import write_onnx
from echelon.export.parity import Scorer, TorchScorer, compare
from echelon.files.checkpoint_layout import default_choice
from echelon.inference.exported_model import ExportManifest, PackageFolder
from echelon.inference.model_folder import default_threads, recipe_decoding, text_rules
from echelon.inference.torch_models import build_model, load_package_model
from echelon.models.transformer import Transformer
from echelon.monitor.records import read_records
from echelon.pretrained.conversion import is_converted
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe, TranslationRecipe
from echelon.recipe.tasks import find_task
from echelon.runfolder import RunFolder, read_file, read_json, write_atomically
from echelon.train.weights import Weights, choose_weights

_CHECKED_SENTENCES = 64
_STEPS = 6
"""Steps of an export: loading, writing, and the four of `compare`."""
_RUNNER = Path(__file__).with_name("edge_runner.py")
_REQUIREMENTS = {"ctranslate2": "ctranslate2>=4.5", "onnx": "onnxruntime>=1.17"}


class ExportDeclaration(Protocol):
    """What a task says about the export of its models."""

    def export(self, run: RunFolder, recipe: Recipe, options: ExportOptions) -> dict[str, Any]: ...


def export_run(run: RunFolder, options: ExportOptions) -> dict[str, Any]:
    """Write a run's model and check it; return the keys of `export --json`. Nothing is left if it fails."""
    recipe = load_recipe(run.require().recipe)
    task: ExportDeclaration = find_task(recipe.task)
    return task.export(run, recipe, options)


def export_translator(run: RunFolder, recipe: TranslationRecipe, options: ExportOptions) -> dict[str, Any]:
    """Export a model that translates."""
    options.show(0.0, "loading the model")
    weights = choose_weights(
        run, options.checkpoint or default_choice(run.checkpoints, recipe.evaluate.final)
    )
    tokeniser = Tokeniser.load(run.tokeniser)
    if options.edge and tokeniser.is_paired:
        raise UserError(
            "the edge runner reads one SentencePiece model, and this translator has one a language"
        )
    model = build_model(recipe, tokeniser.size, weights)
    with packaged(options) as package:
        options.show(1 / _STEPS, "writing the model")
        if options.format == "huggingface":
            write_huggingface(model, recipe, tokeniser, run.tokeniser, package.path)
        else:
            _write_model(package, model, tokeniser, options)
        manifest = _manifest(recipe, weights, model, options)
        package.write_manifest(asdict(manifest))
        write_atomically(package.tokeniser, read_file(run.tokeniser))
        write_atomically(package.recipe, read_file(run.recipe))
        sources = real_sentences(run, tokeniser, recipe.data.max_tokens)
        scorer = _scorer(package, tokeniser, recipe, options)
        check = compare(scorer, TorchScorer(model), sources, options.precision, _after_writing(options.show))
        scores = write_scores(package, run, weights)
        facts = CardFacts(
            manifest, recipe, scores, package.num_bytes(), options.licence, asdict(check), options.edge
        )
        write_atomically(package.card, render_card(facts))
    return summarise(options, manifest, asdict(check))


def _after_writing(show: Callable[[float, str], None]) -> Callable[[float, str], None]:
    """For the comparison: its steps come after loading and writing."""
    return lambda share, doing: show((2 + (_STEPS - 2) * share) / _STEPS, doing)


def _write_model(
    package: PackageFolder, model: Transformer, tokeniser: Tokeniser, options: ExportOptions
) -> None:
    match options.format:
        case "safetensors":
            tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
            safetensors.torch.save_file(tensors, package.weights)
        case "ctranslate2":
            pieces = tokeniser.pieces(range(tokeniser.size))
            write_ctranslate2(model, pieces, package.ctranslate2, options.precision)
        case "onnx":
            write_onnx(model, package.encoder, package.decoder)
    if options.edge:
        shutil.copy(_RUNNER, package.runner)
        write_atomically(
            package.requirements, f"{_REQUIREMENTS[options.format]}\nnumpy\nsentencepiece>=0.2.2\n"
        )


def _scorer(
    package: PackageFolder, tokeniser: Tokeniser, recipe: TranslationRecipe, options: ExportOptions
) -> Scorer:
    """The written model, read back."""
    from echelon.export.scorers import CTranslate2Scorer, OnnxScorer

    match options.format:
        case "safetensors":
            return TorchScorer(load_package_model(package, tokeniser.size))
        case "ctranslate2":
            return CTranslate2Scorer(package.ctranslate2, default_threads())
        case "onnx":
            return OnnxScorer(package.path, default_threads())
        case "huggingface":
            return TorchScorer(read_huggingface(package.path, recipe))


def _manifest(
    recipe: TranslationRecipe, weights: Weights, model: Transformer, options: ExportOptions
) -> ExportManifest:
    decoding = recipe_decoding(recipe)
    sizes = ("vocabulary", "d_model", "d_ff", "heads", "encoder_layers", "decoder_layers")
    return replace(
        manifest_of(recipe, weights, model, options, {name: getattr(model.shape, name) for name in sizes}),
        text=text_rules(recipe),
        decoding={"beam": decoding.beam, "length_penalty": decoding.length_penalty},
        normalisation={f"{code:x}": text or "" for code, text in REPLACEMENTS.items()},
    )


def real_sentences(run: RunFolder, tokeniser: Tokeniser, longest: int) -> list[list[int]]:
    """Sentences to compare on: of the run's test or validation set, or those its records show; of a run that was
    converted and never trained, which has neither, any."""
    lines: list[str] = []
    try:
        prepared = open_prepared(Path(read_json(run.data)["folder"]))
        lines = (prepared.test or prepared.valid).source_lines()
    except (OSError, ValueError, KeyError, TypeError, DataError):  # the data are on another machine
        records = read_records(run.worker_records(0))
        lines = [str(record["source"]) for record in records if record.get("kind") == "sample"]
    if not lines and not run.data.exists() and is_converted(run):
        return _any_sentences(tokeniser.size, longest)
    chosen = [ids for ids in tokeniser.encode(sorted(set(lines))) if 0 < len(ids) < longest]
    if not chosen:
        raise UserError(
            f"{run.path}: neither its data nor its records hold sentences to check the export with; "
            "export where it was trained"
        )
    every = max(1, len(chosen) // _CHECKED_SENTENCES)
    return [[*ids, EOS] for ids in chosen[::every][:_CHECKED_SENTENCES]]


def _any_sentences(vocabulary: int, longest: int) -> list[list[int]]:
    """Pieces drawn at random."""
    dice = random.Random(0)
    lengths = [dice.randint(1, min(longest, 32) - 1) for _ in range(_CHECKED_SENTENCES // 4)]
    return [[*(dice.randrange(UNK + 1, vocabulary) for _ in range(length)), EOS] for length in lengths]
