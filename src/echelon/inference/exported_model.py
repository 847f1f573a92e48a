"""An exported folder: the only place that knows its file names.

NAME/
  echelon.json             what it is: task, format, text rules, search, sizes
  README.md                the model card
  recipe.toml              what it was trained by
  tokeniser.model          SentencePiece; of translation only
  scores.json              of the test or validation set, with signatures
  model.safetensors        format safetensors
  ctranslate2/             format ctranslate2
  encoder.onnx decoder.onnx  format onnx
  model.onnx               the same of a classifier
  config.json vocab.json source.spm target.spm tokenizer_config.json generation_config.json
                           format huggingface, with model.safetensors by its names
  SHA256SUMS               `sha256sum -c SHA256SUMS` checks the rest
  translate.py requirements.txt   an edge bundle's runner
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from echelon.data.cleaning import NormalForm
from echelon.errors import PackageError
from echelon.files.checksum import checksum_of_file
from echelon.inference.pictures import PictureRules
from echelon.recipe.tasks import TASKS
from echelon.runfolder import read_file, write_atomically, write_json

FORMAT_VERSION = 1
ExportFormat = Literal["safetensors", "ctranslate2", "onnx", "huggingface"]


@dataclass(frozen=True)
class TextRules:
    """What a model expects of its text."""

    source_language: str
    target_language: str
    unicode: NormalForm
    longest: int
    """Source tokens above which lines are split."""


@dataclass(frozen=True)
class ExportManifest:
    """echelon.json."""

    version: int
    task: str
    format: ExportFormat
    name: str
    checkpoint: str
    step: int
    precision: Literal["float32", "bf16", "fp16", "int8"]
    """What it computes in: as trained, or as exported."""
    text: TextRules | None
    """For translation."""
    decoding: dict[str, float]
    """For translation: the recipe's beam and length penalty."""
    sizes: dict[str, int]
    """Parameters, vocabulary, widths and depths."""
    normalisation: dict[str, str]
    """For translation: characters that are replaced before tokenising, by code point in hex; for the edge runner."""
    pictures: PictureRules | None = None
    """For classification."""


class PackageFolder:
    """One exported folder on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = path / "echelon.json"
        self.card = path / "README.md"
        self.recipe = path / "recipe.toml"
        self.tokeniser = path / "tokeniser.model"
        self.scores = path / "scores.json"
        self.weights = path / "model.safetensors"
        self.ctranslate2 = path / "ctranslate2"
        self.encoder = path / "encoder.onnx"
        self.decoder = path / "decoder.onnx"
        self.network = path / "model.onnx"
        self.checksums = path / "SHA256SUMS"
        self.runner = path / "translate.py"
        self.requirements = path / "requirements.txt"

    def is_there(self) -> bool:
        return self.manifest.is_file()

    def read_manifest(self) -> ExportManifest:
        """PackageError if it is not one, or another version's."""
        try:
            manifest = TypeAdapter(ExportManifest).validate_json(read_file(self.manifest))
        except OSError as error:
            raise PackageError(f"{self.manifest}: cannot be read: {error.strerror}") from error
        except (ValidationError, RecursionError) as error:
            raise PackageError(f"{self.manifest}: does not describe an exported model") from error
        if manifest.version != FORMAT_VERSION:
            raise PackageError(
                f"{self.manifest}: has version {manifest.version}, this Echelon reads {FORMAT_VERSION}; export again"
            )
        if manifest.task not in TASKS:
            raise PackageError(f"{self.manifest}: is a model for {manifest.task!r}, which this Echelon lacks")
        return manifest

    def write_manifest(self, values: dict[str, Any]) -> None:
        write_json(self.manifest, values)

    def seal(self) -> None:
        """Write the checksums of all files, in the form of sha256sum."""
        lines = [f"{self._checksum(file)}  {file.relative_to(self.path)}\n" for file in self._files()]
        write_atomically(self.checksums, "".join(lines))

    def verify(self) -> None:
        """Compare every file with its checksum; PackageError names the first that differs, is missing or is new."""
        try:
            lines = [line.split("  ", 1) for line in read_file(self.checksums).decode().splitlines()]
            recorded = {name: checksum for checksum, name in lines}
        except (OSError, ValueError) as error:
            raise PackageError(f"{self.checksums}: cannot be read: {error}") from error
        found = {str(file.relative_to(self.path)): file for file in self._files()}
        for name in sorted(recorded.keys() | found.keys()):
            if name not in found:
                raise PackageError(f"{self.path / name}: is missing; export or copy the folder again")
            if name not in recorded:
                continue  # other files beside it are never read
            if self._checksum(found[name]) != recorded[name]:
                raise PackageError(f"{self.path / name}: its checksum is not the recorded one; copy it again")
        for needed in (self.manifest, self.tokeniser):
            if needed.name not in recorded and needed.exists():
                raise PackageError(f"{needed}: has no recorded checksum")

    def _checksum(self, file: Path) -> str:
        try:
            return checksum_of_file(file, "sha256")
        except OSError as error:
            raise PackageError(f"{file}: cannot be read: {error.strerror}") from None

    def num_bytes(self) -> int:
        """The bytes of everything in the folder."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def _files(self) -> list[Path]:
        files = (file for file in self.path.rglob("*") if file.is_file() and file != self.checksums)
        return sorted(file for file in files if "__pycache__" not in file.parts)
