"""The folder that an export makes: written beside its place, sealed, then moved there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from echelon.errors import UserError
from echelon.inference.exported_model import FORMAT_VERSION, ExportFormat, ExportManifest, PackageFolder
from echelon.monitor.scores import scores_of
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder, write_json
from echelon.train.weights import Weights


@dataclass(frozen=True)
class ExportOptions:
    """Options of an export."""

    format: ExportFormat
    to: Path
    precision: Literal["float32", "int8"] = "float32"
    """The format of the weights; int8 is CTranslate2's."""
    checkpoint: str | None = None
    edge: bool = False
    """Add the runner script, which needs neither torch nor Echelon."""
    licence: str = "unknown"
    force: bool = False
    """Replace an earlier export at the same place."""
    show: Callable[[float, str], None] = lambda share, doing: None
    """Called with the share that is done and the current stage."""

    def __post_init__(self) -> None:
        if self.precision == "int8" and self.format != "ctranslate2":
            raise UserError(f"int8 is for --format ctranslate2; {self.format} is written in float32")
        if self.edge and self.format in ("safetensors", "huggingface"):
            raise UserError("an edge bundle runs without torch; use --format ctranslate2 or onnx with --edge")
        if self.to.is_symlink() and Path(os.path.realpath(self.to)).is_symlink():
            raise UserError(f"{self.to}: is a link that leads back to itself; remove it")
        if self.to.exists() and not (self.force and PackageFolder(self.to).is_there()):
            raise UserError(
                f"{self.to}: already exists; name another folder, or replace an export with --force"
            )


@contextmanager
def packaged(options: ExportOptions) -> Iterator[PackageFolder]:
    """A folder beside its destination, sealed and moved there on success; a link is followed."""
    to = Path(os.path.realpath(options.to))
    to.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=f".{to.name}.") as place:
        package = PackageFolder(Path(place) / "export")
        package.path.mkdir()
        yield package
        package.seal()
        _move(package.path, to)


def manifest_of(
    recipe: Recipe, weights: Weights, model: nn.Module, options: ExportOptions, sizes: Mapping[str, int]
) -> ExportManifest:
    """What the manifests of all models say; the rules for text or images are missing."""
    return ExportManifest(
        version=FORMAT_VERSION,
        task=recipe.task,
        format=options.format,
        name=recipe.name,
        checkpoint=weights.label,
        step=weights.step,
        precision=recipe.train.precision if options.format == "safetensors" else options.precision,
        text=None,
        decoding={},
        sizes={"parameters": sum(parameter.numel() for parameter in model.parameters()), **sizes},
        normalisation={},
    )


def write_scores(package: PackageFolder, run: RunFolder, weights: Weights) -> dict[str, dict[str, Any]]:
    """The scores of the exported checkpoint by split, into the package."""
    scores = scores_of(run, weights.label, weights.step)
    write_json(package.scores, scores)
    return scores


def _move(made: Path, to: Path) -> None:
    """Give a folder its name; an existing folder of that name is kept, hidden, until this has succeeded."""
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


def summarise(options: ExportOptions, manifest: ExportManifest, check: dict[str, Any]) -> dict[str, Any]:
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
