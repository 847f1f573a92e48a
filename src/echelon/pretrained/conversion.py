"""A model from elsewhere as a run folder: with a recipe, one checkpoint of step 0, and what its use needs."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from echelon.data.prepare import default_cache
from echelon.errors import UserError
from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, clear_for_saving
from echelon.files.checksum import checksum_of_file
from echelon.monitor.provenance import collect_provenance
from echelon.pretrained.marian import MarianModel, read_marian
from echelon.pretrained.pretrained_folder import PretrainedFolder, is_pretrained
from echelon.pretrained.resnet_weights import ResNetModel, read_resnet, rules_as_json
from echelon.recipe.schema import ClassificationRecipe, Recipe, TranslationRecipe
from echelon.resolve.run_recipe import write_recipe
from echelon.runfolder import RunFolder, read_json, write_atomically, write_json
from echelon.train.checkpoint_writer import SaveJob, plan_files, write_job
from echelon.train.tensorfile import TensorImage

_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_FORMAT = 1
"""Of what is kept in the cache; another number converts anew."""


@dataclass(frozen=True)
class ConvertedModel:
    """What became of a folder."""

    run: RunFolder
    recipe: Recipe
    num_numbers: int


def convert_pretrained(path: Path, to: Path) -> ConvertedModel:
    """Write the model in `path` as a new run; UserError with the reason if Echelon cannot have it."""
    if to.exists():
        raise UserError(f"{to}: already exists; name another folder with --to")
    folder = PretrainedFolder(path)
    config = folder.read_config()
    kind = config.get("model_type")
    if kind is not None and kind != "marian":
        raise UserError(
            f"{path}: is of the architecture {str(kind)[:40]!r}; of transformers, Echelon has Marian models only"
        )
    found = read_marian(folder, config) if kind == "marian" else read_resnet(folder, config)
    recipe = _recipe(found, path)
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as place:
        run = RunFolder(Path(place) / "run")
        run.create()
        _write_files(run, found)
        write_recipe(run, recipe)
        origin = {"folder": str(path.resolve()), "sha256": checksum_of_file(folder.weights, "sha256")}
        write_json(run.provenance, [{**collect_provenance(), "converted_from": origin}])
        _write_checkpoint(run, found.tensors)
        run.path.rename(to)
    return ConvertedModel(RunFolder(to), recipe, sum(tensor.numel() for tensor in found.tensors.values()))


def starting_run(init_from: str) -> RunFolder:
    """The run that `train.init_from` means: a run itself, or what a model from elsewhere is converted to."""
    path = Path(init_from)
    if is_pretrained(path):
        path = as_run(path)
    return RunFolder(path.resolve()).require()


def is_converted(run: RunFolder) -> bool:
    """Whether the run is a model from elsewhere, not yet trained."""
    try:
        starts = read_json(run.provenance)
    except (OSError, ValueError):
        return False
    return isinstance(starts, list) and bool(starts) and "converted_from" in starts[-1]


def as_run(path: Path) -> Path:
    """The run that a model from elsewhere is converted to, in the cache; found again by the model's content."""
    folder = PretrainedFolder(path)
    folder.load_tensors()  # whatever is wrong with the file is said before it is read for its checksum
    digest = hashlib.sha256(f"{_FORMAT} {checksum_of_file(folder.weights, 'sha256')}".encode())
    for name in ("config.json", "vocab.json", "tokenizer_config.json", "source.spm", "target.spm"):
        content = folder.read(name) if path.is_dir() and folder.has(name) else b""
        digest.update(len(content).to_bytes(8, "little") + content)
    to = default_cache() / "pretrained" / digest.hexdigest()[:32]
    return to if to.exists() else convert_pretrained(path, to).run.path


def _recipe(found: MarianModel | ResNetModel, path: Path) -> Recipe:
    """The model's own part; the rest is where fine-tuning may begin, with data that are still to be named."""
    name = _NAME.sub("-", path.resolve().name.removesuffix(".safetensors")).strip("-._") or "converted"
    common: dict[str, Any] = {
        "version": 1,
        "name": name,
        "model": found.model,
        "schedule": {"kind": "fixed", "learning_rate": 2e-5, "warmup_steps": 100},
        "evaluate": {"final": "last"},
    }
    if isinstance(found, ResNetModel):
        data: Mapping[str, Any] = {"source": "folder", "path": "pictures", "pixels": found.rules.pixels}
        return ClassificationRecipe.model_validate(
            {**common, "task": "classification", "data": data, "train": {"steps": 1000, "batch_images": 64}}
        )
    source, target = found.languages
    corpora = {
        split: {"source": f"{split}.{source}", "target": f"{split}.{target}"} for split in ("train", "valid")
    }
    data = {
        "source_language": source,
        "target_language": target,
        "train": [corpora["train"]],
        "valid": corpora["valid"],
        "vocabulary": max(64, len(found.tokeniser.pieces)),
    }
    return TranslationRecipe.model_validate({**common, "data": data, "train": {"steps": 1000}})


def _write_files(run: RunFolder, found: MarianModel | ResNetModel) -> None:
    if isinstance(found, ResNetModel):
        write_json(run.images, rules_as_json(found.rules))
    else:
        write_atomically(run.tokeniser, found.tokeniser.to_json())


def _write_checkpoint(run: RunFolder, tensors: Mapping[str, Tensor]) -> None:
    """The weights as a complete checkpoint of step 0, unscored."""
    folder = checkpoint_folder(run.checkpoints, 0)
    clear_for_saving(folder)
    files, names = plan_files(tensors, {}, 0, 1)
    images = {}
    for name, part in files.items():
        images[name] = TensorImage(part)
        for key, tensor in part.items():
            images[name].tensors[key].copy_(tensor)
    write_job(SaveJob(folder, files, TrainingState(), names), images)
