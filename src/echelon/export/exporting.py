"""From a run to a folder to carry away: written beside its place, compared with PyTorch, then moved there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import safetensors.torch

from echelon.data.cleaning import REPLACEMENTS
from echelon.data.prepared import open_prepared
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.errors import DataError, UserError
from echelon.export.card import CardFacts, render_card
from echelon.export.checking import Scorer, TorchScorer, compare
from echelon.export.ctranslate2_format import write_ctranslate2
from echelon.export.onnx_format import write_onnx
from echelon.inference.loading import available_cores, recipe_decoding, text_rules
from echelon.inference.package import FORMAT_VERSION, Format, Manifest, PackageFolder
from echelon.inference.torch_models import build_model, load_package_model
from echelon.models.transformer import Transformer
from echelon.monitor.records import read_records
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import ClassificationRecipe, TranslationRecipe
from echelon.runfolder import RunFolder, read_json, write_atomically, write_json
from echelon.train.weights import Weights, choose_weights

_CHECKED_SENTENCES = 64
_RUNNER = Path(__file__).with_name("edge_runner.py")
_REQUIREMENTS = {"ctranslate2": "ctranslate2>=4.5", "onnx": "onnxruntime>=1.17"}


@dataclass(frozen=True)
class ExportOptions:
    """What is wanted of an export."""

    format: Format
    to: Path
    precision: Literal["float32", "int8"] = "float32"
    """Of the weights; int8 is CTranslate2's."""
    checkpoint: str | None = None
    edge: bool = False
    """Add the runner script, which needs neither torch nor Echelon."""
    licence: str = "unknown"
    force: bool = False
    """Replace an earlier export at the same place."""

    def __post_init__(self) -> None:
        if self.precision == "int8" and self.format != "ctranslate2":
            raise UserError(f"int8 is for --format ctranslate2; {self.format} is written in float32")
        if self.edge and self.format == "safetensors":
            raise UserError("an edge bundle runs without torch; use --format ctranslate2 or onnx with --edge")
        if self.to.is_symlink() and Path(os.path.realpath(self.to)).is_symlink():
            raise UserError(f"{self.to}: is a link that leads back to itself; remove it")
        if self.to.exists() and not (self.force and PackageFolder(self.to).is_there()):
            raise UserError(
                f"{self.to}: is there already; name another folder, or --force replaces an export"
            )


def export_run(run: RunFolder, options: ExportOptions) -> dict[str, Any]:
    """Write a run's model and check it; the keys of `export --json`. Nothing is left where it fails."""
    recipe = load_recipe(run.require().recipe)
    if isinstance(recipe, ClassificationRecipe):
        from echelon.export.classifiers import export_classifier

        return export_classifier(run, recipe, options)
    weights = choose_weights(run, options.checkpoint or recipe.evaluate.final)
    tokeniser = Tokeniser.load(run.tokeniser)
    model = build_model(recipe, tokeniser.size, weights)
    with packaged(options) as package:
        _write_model(package, model, tokeniser, options)
        manifest = _manifest(run, recipe, weights, model, options)
        package.write_manifest(asdict(manifest))
        shutil.copy(run.tokeniser, package.tokeniser)
        write_atomically(package.recipe, run.recipe.read_bytes())
        sources = real_sentences(run, tokeniser, recipe.data.max_tokens)
        check = compare(_scorer(package, tokeniser, options), TorchScorer(model), sources, options.precision)
        facts = CardFacts(manifest, recipe, {}, 0, options.licence, options.edge, asdict(check))
        scores = write_scores(package, run)
        card = render_card(replace(facts, scores=scores, bytes=package.num_bytes()))
        write_atomically(package.card, card)
    return summarise(options, manifest, asdict(check))


@contextmanager
def packaged(options: ExportOptions) -> Iterator[PackageFolder]:
    """A folder beside its place, sealed and moved there when all has gone well; a link is written through."""
    to = Path(os.path.realpath(options.to))
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as place:
        package = PackageFolder(Path(place) / "export")
        package.path.mkdir()
        yield package
        package.seal()
        _move(package.path, to)


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
            package.requirements, f"{_REQUIREMENTS[options.format]}\nnumpy\nsentencepiece>=0.2\n"
        )


def _scorer(package: PackageFolder, tokeniser: Tokeniser, options: ExportOptions) -> Scorer:
    """What was written, read back."""
    from echelon.export.scorers import CTranslate2Scorer, OnnxScorer

    match options.format:
        case "safetensors":
            return TorchScorer(load_package_model(package, tokeniser.size))
        case "ctranslate2":
            return CTranslate2Scorer(package.ctranslate2, available_cores())
        case "onnx":
            return OnnxScorer(package.path, available_cores())


def _manifest(
    run: RunFolder, recipe: TranslationRecipe, weights: Weights, model: Transformer, options: ExportOptions
) -> Manifest:
    decoding = recipe_decoding(recipe)
    as_trained = options.format == "safetensors"
    return Manifest(
        version=FORMAT_VERSION,
        task="translation",
        format=options.format,
        name=recipe.name,
        checkpoint=weights.label,
        step=weights.step,
        precision=recipe.train.precision if as_trained else options.precision,
        text=text_rules(recipe),
        decoding={"beam": decoding.beam, "length_penalty": decoding.length_penalty},
        sizes={
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "vocabulary": model.shape.vocabulary,
            "d_model": model.shape.d_model,
            "d_ff": model.shape.d_ff,
            "heads": model.shape.heads,
            "encoder_layers": model.shape.encoder_layers,
            "decoder_layers": model.shape.decoder_layers,
        },
        normalisation={f"{code:x}": text or "" for code, text in REPLACEMENTS.items()},
    )


def real_sentences(run: RunFolder, tokeniser: Tokeniser, longest: int) -> list[list[int]]:
    """Sentences to compare on: of the run's test or validation set, or those its records show."""
    lines: list[str] = []
    try:
        prepared = open_prepared(Path(read_json(run.data)["folder"]))
        lines = (prepared.test or prepared.valid).source_lines()
    except (OSError, ValueError, KeyError, TypeError, DataError):  # the data are on another machine
        records = read_records(run.worker_records(0))
        lines = [str(record["source"]) for record in records if record.get("kind") == "sample"]
    chosen = [ids for ids in tokeniser.encode(sorted(set(lines))) if 0 < len(ids) < longest]
    if not chosen:
        raise UserError(
            f"{run.path}: neither its data nor its records hold sentences to check the export with; "
            "export where it was trained"
        )
    every = max(1, len(chosen) // _CHECKED_SENTENCES)
    return [[*ids, EOS] for ids in chosen[::every][:_CHECKED_SENTENCES]]


def write_scores(package: PackageFolder, run: RunFolder) -> dict[str, Any]:
    """The run's scores by split, as `evaluate` keeps them, into the package."""
    scores = {
        split: read_json(run.score_file(split))
        for split in ("test", "valid")
        if run.score_file(split).is_file()
    }
    write_json(package.scores, scores)
    return scores


def _move(made: Path, to: Path) -> None:
    """Give a folder its name; an earlier one of that name is kept, hidden beside it, until this one has it."""
    earlier = made.parent.with_name(f"{made.parent.name}.earlier")
    try:
        if to.exists():
            to.rename(earlier)
        made.rename(to)
    except BaseException:
        if earlier.exists() and not to.exists():
            earlier.rename(to)
        raise
    if earlier.exists():
        shutil.rmtree(earlier)


def summarise(options: ExportOptions, manifest: Manifest, check: dict[str, Any]) -> dict[str, Any]:
    """The keys of `export --json`."""
    return {
        "folder": str(options.to),
        "format": options.format,
        "precision": manifest.precision,
        "edge": options.edge,
        "checkpoint": manifest.checkpoint,
        "step": manifest.step,
        "bytes": PackageFolder(options.to).num_bytes(),
        "check": check,
    }
