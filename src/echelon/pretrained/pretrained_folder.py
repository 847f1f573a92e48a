"""Model folders of other libraries, from anybody: config.json and model.safetensors, read within bounds.

Nothing of the folder is imported or executed, no pickle is opened, and no name in a file leads anywhere.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from echelon.errors import UserError
from echelon.runfolder import open_regular, parse_json, read_file, require_regular

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
MOST_CONFIG_BYTES = 2**20
MOST_VOCABULARY_BYTES = 2**24
MOST_HEADER_BYTES = 2**24
"""The header of a safetensors file takes about 100 bytes a tensor."""
MOST_TENSORS = 20_000
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.npz", "*.h5", "*.msgpack")
_OWN_CODE = ("auto_map", "custom_pipelines", "trust_remote_code", "custom_code")
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class PretrainedFolder:
    """A folder in Hugging Face's layout, or only a safetensors file with a state dict."""

    path: Path

    @property
    def weights(self) -> Path:
        return self.path / WEIGHTS if self.path.is_dir() else self.path

    def read_config(self) -> dict[str, Any]:
        """config.json; nothing if there is none. UserError if it is damaged, or wants code of its own to be run."""
        if not self.path.is_dir() or not (self.path / CONFIG).exists():
            return {}
        config = self.read_json(CONFIG, MOST_CONFIG_BYTES)
        if not isinstance(config, dict):
            raise UserError(f"{self.path / CONFIG}: is not a table of settings")
        wanted = [key for key in _OWN_CODE if config.get(key)]
        if wanted:
            raise UserError(
                f"{self.path / CONFIG}: names code of its own ({', '.join(wanted)}), which Echelon never runs; "
                "only models whose architecture it knows can be converted"
            )
        return config

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_json(self, name: str, most_bytes: int = MOST_VOCABULARY_BYTES) -> Any:
        try:
            return parse_json(self.read(name, most_bytes))
        except ValueError as error:
            raise UserError(f"{self.path / name}: is not JSON: {error}") from None

    def read(self, name: str, most_bytes: int = MOST_VOCABULARY_BYTES) -> bytes:
        """The content of one of the folder's files; UserError if it is missing, elsewhere or too large."""
        file = self.path / name
        self._require_inside(file)
        try:
            return read_file(file, most_bytes)
        except OSError as error:
            raise UserError(f"{file}: cannot be read: {error.strerror}") from None

    def load_tensors(self) -> dict[str, Tensor]:
        """All tensors by name, numbers in float32; UserError if there is no such file, or it is damaged."""
        file = self.weights
        if not file.exists():
            self._explain_missing_weights()
        self._require_inside(file)
        try:
            _check_header(file)
            tensors = safetensors.torch.load_file(file)
        except (OSError, SafetensorError, ValueError) as error:
            raise UserError(f"{file}: is not a safetensors file that can be used: {error}") from None
        return {
            name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
        }

    def _explain_missing_weights(self) -> None:
        if not self.path.exists():
            raise UserError(f"{self.path}: does not exist")
        if (self.path / f"{WEIGHTS}.index.json").exists():
            raise UserError(
                f"{self.path}: has its weights in several files; write them as one: "
                "model.save_pretrained(FOLDER, max_shard_size='100GB')"
            )
        pickles = sorted(file.name for pattern in _PICKLES for file in self.path.glob(pattern))
        if pickles:
            raise UserError(
                f"{self.path}: has its weights as {pickles[0]}, and no {WEIGHTS}. Such a file is a program that runs "
                "when it is opened, so Echelon does not open it. If you trust where it comes from, convert it once: "
                "AutoModelForSeq2SeqLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) of transformers, or "
                "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'model.safetensors')"
            )
        raise UserError(f"{self.path}: there is no {WEIGHTS} here")

    def _require_inside(self, file: Path) -> None:
        """UserError if a link leads out of the folder; the Hub's cache has its files in `blobs`, beside `snapshots`."""
        if not self.path.is_dir() or not file.is_symlink():
            return
        folder, found = self.path.resolve(), file.resolve()
        blobs = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
        if found.parent not in (folder, blobs):
            raise UserError(f"{file}: is a link that leads out of the folder; put the file itself there")


def is_pretrained(path: Path) -> bool:
    """Whether this is another library's model rather than a run of ours."""
    if path.is_dir():
        is_run = (path / "checkpoints").is_dir()
        return (
            not is_run and any((path / name).exists() for name in (CONFIG, WEIGHTS, f"{WEIGHTS}.index.json"))
        ) or (not is_run and any(any(path.glob(pattern)) for pattern in _PICKLES))
    return path.is_file()


def _check_header(file: Path) -> None:
    """ValueError unless the header is small, and its tensors of types that we know."""
    size = require_regular(file)
    with open(file, "rb", opener=open_regular) as stream:
        (length,) = struct.unpack("<Q", stream.read(8).ljust(8, b"\xff"))
        if length > min(MOST_HEADER_BYTES, size - 8):
            raise ValueError(f"its header claims to have {length:,} bytes")
        header = parse_json(stream.read(length))
    if not isinstance(header, dict) or len(header) > MOST_TENSORS:
        raise ValueError(f"its header is no list of at most {MOST_TENSORS:,} tensors")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        kind = entry.get("dtype") if isinstance(entry, dict) else None
        if kind not in (*_FLOATS, "I64"):
            raise ValueError(f"{name[:80]!r} has numbers of type {kind}; use {', '.join(_FLOATS)}")
