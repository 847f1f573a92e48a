"""Checkpoints: safetensors and JSON, each file with a sidecar that holds its size and SHA-256.

    checkpoints/step-00001000/
      model.safetensors      model.safetensors.sha256.json
      optimiser.safetensors  optimiser.safetensors.sha256.json
      state.json             state.json.sha256.json

A checkpoint is complete when all sidecars are there and right: a rule that needs no rename of folders, so it holds
on a disk and on an object store alike. Nothing in a checkpoint is ever executed: no pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from torch import Tensor

from echelon.errors import CheckpointError
from echelon.runfolder import read_json, remove_folder, sync_folder, write_atomically

FORMAT = 1
MODEL, OPTIMISER, STATE = "model.safetensors", "optimiser.safetensors", "state.json"
_FILES = (MODEL, OPTIMISER, STATE)
_SIDECAR = ".sha256.json"
_FOLDER_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True)
class Best:
    """The best validation score so far."""

    step: int
    metric: str
    value: float


@dataclass
class TrainingState:
    """Where training stands, beside weights and optimiser: all that is needed to go on as if never stopped."""

    step: int = 0
    best: Best | None = None
    waits: dict[str, dict[str, float]] = field(default_factory=dict)
    """Early stopping: per metric its best value and the scorings since then."""
    skipped_steps: int = 0
    precision: dict[str, Any] = field(default_factory=dict)
    stopped_early: bool = False

    def to_json(self) -> str:
        best = vars(self.best) if self.best else None
        return json.dumps({"format": FORMAT, **vars(self), "best": best}, indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> TrainingState:
        _STATE.validate_json(text, strict=True)
        values = json.loads(text)
        if values.pop("format") != FORMAT:
            raise ValueError("written by another version of Echelon")
        best = values.pop("best")
        return TrainingState(best=Best(**best) if best else None, **values)


_STATE = TypeAdapter(TrainingState)


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    step: int

    def load_model(self) -> dict[str, Tensor]:
        """The model's tensors by name, mapped from the file."""
        return self._load_tensors(MODEL)

    def load_optimiser(self) -> dict[str, Tensor]:
        return self._load_tensors(OPTIMISER)

    def load_state(self) -> TrainingState:
        try:
            state = TrainingState.from_json((self.folder / STATE).read_text())
            if state.step != self.step:
                raise ValueError(f"it is of step {state.step}")
            return state
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._refuse(STATE, error)

    def verify(self) -> None:
        """Compare every file with its SHA-256; raises CheckpointError that names the damaged file."""
        for name in _FILES:
            sidecar = _read_sidecar(self.folder, name)
            if sidecar is None or _sha256(self.folder / name) != sidecar["sha256"]:
                self._refuse(name, ValueError("its checksum is not the recorded one"))

    def _load_tensors(self, name: str) -> dict[str, Tensor]:
        try:
            return safetensors.torch.load_file(self.folder / name)
        except (OSError, SafetensorError) as error:
            self._refuse(name, error)

    def _refuse(self, name: str, error: Exception) -> NoReturn:
        raise CheckpointError(f"{self.folder / name} cannot be used: {error}") from error


def save_checkpoint(
    checkpoints: Path, state: TrainingState, model: dict[str, Tensor], optimiser: dict[str, Tensor]
) -> Checkpoint:
    """Write a checkpoint; when this returns, it is complete and survives a power cut."""
    folder = checkpoints / f"step-{state.step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    for sidecar in folder.glob(f"*{_SIDECAR}"):
        sidecar.unlink()  # an earlier save of this step: incomplete from here until its last sidecar is back
    _write_tensors(folder / MODEL, model)
    _write_tensors(folder / OPTIMISER, optimiser)
    write_atomically(folder / STATE, state.to_json())
    for name in _FILES:
        _write_sidecar(folder, name)
    sync_folder(checkpoints)
    return Checkpoint(folder, state.step)


def list_checkpoints(checkpoints: Path) -> list[Checkpoint]:
    """The complete checkpoints, oldest first. Sizes are checked here, checksums by `verify`."""
    if not checkpoints.is_dir():
        return []
    numbered = [
        (match, path) for path in checkpoints.iterdir() if (match := _FOLDER_NAME.fullmatch(path.name))
    ]
    found = [
        Checkpoint(path, int(match[1]))
        for match, path in numbered
        if not path.is_symlink() and _is_complete(path)
    ]
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def newest_good_checkpoint(checkpoints: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose checksums are right, and a message for each damaged one passed over."""
    damaged: list[str] = []
    for checkpoint in reversed(list_checkpoints(checkpoints)):
        try:
            checkpoint.verify()
        except CheckpointError as error:
            damaged.append(str(error))
        else:
            return checkpoint, damaged
    return None, damaged


def choose_checkpoint(checkpoints: Path, which: str | Path) -> Checkpoint:
    """The "best" or the "last" checkpoint of a run, or the one in a given folder; verified."""
    if which not in ("best", "last"):
        return _checkpoint_at(Path(which))
    found = list_checkpoints(checkpoints)
    if not found:
        raise CheckpointError(f"{checkpoints}: there is no complete checkpoint yet")
    chosen = found[-1]
    if which == "best":
        best = chosen.load_state().best
        if best is None:
            raise CheckpointError(
                f"{checkpoints}: nothing was scored yet, so no checkpoint is the best; use last"
            )
        chosen = next((c for c in found if c.step == best.step), chosen)
    chosen.verify()
    return chosen


def average_weights(chosen: Sequence[Checkpoint]) -> dict[str, Tensor]:
    """The mean of the checkpoints' weights, summed in float64 in the order given."""
    total: dict[str, Tensor] = {}
    for checkpoint in chosen:
        checkpoint.verify()
        for name, tensor in checkpoint.load_model().items():
            total[name] = total[name] + tensor if name in total else tensor.double()
    return {name: (tensor / len(chosen)).float() for name, tensor in total.items()}


def prune_checkpoints(checkpoints: Path, keep: int, best: Best | None) -> None:
    """Remove all but the newest `keep` and the best."""
    for checkpoint in list_checkpoints(checkpoints)[:-keep]:
        if best is None or checkpoint.step != best.step:
            remove_folder(checkpoint.folder)


def _checkpoint_at(folder: Path) -> Checkpoint:
    match = _FOLDER_NAME.fullmatch(folder.resolve().name)
    if match is None or not _is_complete(folder):
        raise CheckpointError(f"{folder}: is not a complete checkpoint folder")
    checkpoint = Checkpoint(folder, int(match[1]))
    checkpoint.verify()
    return checkpoint


def _is_complete(folder: Path) -> bool:
    for name in _FILES:
        sidecar = _read_sidecar(folder, name)
        file = folder / name
        if sidecar is None or not _is_own(file) or file.stat().st_size != sidecar["bytes"]:
            return False
    return True


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """As `write_atomically`, but the tensors stream to the file rather than through one big string."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    contiguous = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    try:
        temporary.unlink(missing_ok=True)  # never write through a link that somebody put there
        safetensors.torch.save_file(contiguous, temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_sidecar(folder: Path, name: str) -> None:
    path = folder / name
    content = {"sha256": _sha256(path), "bytes": path.stat().st_size}
    write_atomically(folder / (name + _SIDECAR), json.dumps(content) + "\n")


def _read_sidecar(folder: Path, name: str) -> dict[str, Any] | None:
    try:
        content = read_json(folder / (name + _SIDECAR)) if _is_own(folder / (name + _SIDECAR)) else None
    except (OSError, ValueError):
        return None
    is_right = isinstance(content, dict) and {"sha256", "bytes"} <= content.keys()
    return content if is_right else None


def _is_own(file: Path) -> bool:
    """Whether a checkpoint's file is one, not a link to somewhere else: what is checked is then what is read."""
    return file.is_file() and not file.is_symlink()


def _sha256(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def weights_digest(weights: Tensor) -> int:
    """A number that tells whether workers hold the same weights, to the bit."""
    return zlib.crc32(weights.detach().cpu().numpy().data)
