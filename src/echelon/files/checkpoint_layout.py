"""What a checkpoint is on disk, and when it counts; read here without torch, and loaded by train/checkpoint.py.

    checkpoints/step-00001000/
      model.safetensors               the weights, written by worker 0
      optimiser-0-of-2.safetensors    the optimiser's state, split over the workers
      optimiser-1-of-2.safetensors
      state.json                      where training stands, and the names of the other files
      *.checksum.json                 a sidecar each

A checkpoint is complete when the sidecars of all the files that state.json names are there and right: a rule that
needs no rename of folders, so it holds on a disk and on an object store alike. Nothing in a checkpoint is ever
executed: no pickle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from echelon.files.checksum import ALGORITHM, OLDER_ALGORITHM, Written, checksum_of
from echelon.runfolder import parse_json, read_file, read_json, write_atomically

FORMAT = 3
_READABLE_FORMATS = (2, 3)
"""Format 2 differs in its sidecars, which are called NAME.sha256.json and hold SHA-256."""
MODEL, STATE = "model.safetensors", "state.json"
_SIDECARS = {ALGORITHM: ".checksum.json", OLDER_ALGORITHM: ".sha256.json"}
FOLDER_NAME = re.compile(r"step-(\d{8,})")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.safetensors")


@dataclass(frozen=True)
class Best:
    """The best validation score so far."""

    step: int
    metric: str
    value: float


@dataclass
class TrainingState:
    """Where training stands, beside weights and optimiser: all that is needed to resume as if never stopped."""

    step: int = 0
    best: Best | None = None
    waits: dict[str, dict[str, float]] = field(default_factory=dict)
    """Early stopping: per metric its best value and the scorings since then."""
    skipped_steps: int = 0
    precision: dict[str, Any] = field(default_factory=dict)
    stopped_early: bool = False
    checkpoint_every: int | None = None
    """What `checkpoint.every = "auto"` became."""
    awaits_scoring: bool = False
    """This step's scoring was broken off, and comes first when the run is resumed."""

    def take_over(self, other: TrainingState) -> None:
        """Copy all fields of `other`."""
        vars(self).update(vars(other))

    def to_json(self, files: Sequence[str]) -> str:
        best = vars(self.best) if self.best else None
        return (
            json.dumps({"format": FORMAT, "files": list(files), **vars(self), "best": best}, indent=2) + "\n"
        )

    @staticmethod
    def from_json(text: bytes | str) -> TrainingState:
        _STATE.validate_json(text, strict=True)
        values = parse_json(text)
        if values.pop("format") not in _READABLE_FORMATS:
            raise ValueError("written by another version of Echelon")
        values.pop("files")
        best = values.pop("best")
        return TrainingState(best=Best(**best) if best else None, **values)


_STATE = TypeAdapter(TrainingState)


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def best_beside(folder: Path) -> Path | None:
    """Where the checkpoint belongs that the one in `folder` names as the best; None if it names none."""
    try:
        best = TrainingState.from_json(read_file(folder / STATE)).best
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return checkpoint_folder(folder.parent, best.step) if best else None


def default_choice(checkpoints: Path, final: str) -> str:
    """Which checkpoint to use if none is named: the recipe's `evaluate.final`, or the last if none is best yet."""
    newest = complete_folders(checkpoints)[-1:]
    is_unscored = bool(newest) and best_beside(newest[0][1]) is None
    return "last" if final == "best" and is_unscored else final


def awaits_scoring(folder: Path) -> bool:
    """Whether the checkpoint in `folder` was saved when the scoring of its step was broken off."""
    try:
        return TrainingState.from_json(read_file(folder / STATE)).awaits_scoring
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def shard_file(rank: int, size: int) -> str:
    """The file that holds worker `rank`'s share of the optimiser's state."""
    return f"optimiser-{rank}-of-{size}.safetensors"


def clear_for_saving(folder: Path) -> None:
    """Make a folder in which whatever an earlier, unfinished save of this step left counts for nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in (*_sidecars(folder), *folder.glob(".*.tmp")):
        left.unlink()


def write_state(folder: Path, state: TrainingState, files: Sequence[str]) -> Written:
    """Write state.json, which names the checkpoint's other files."""
    content = state.to_json(files).encode()
    write_atomically(folder / STATE, content)
    return Written(checksum_of(content), len(content))


def write_sidecar(folder: Path, name: str, written: Written) -> None:
    """Write the sidecar of a file that is on the disk."""
    content = {ALGORITHM: written.checksum, "bytes": written.bytes}
    write_atomically(folder / (name + _SIDECARS[ALGORITHM]), json.dumps(content) + "\n")


def tensor_files(folder: Path) -> list[str] | None:
    """The tensor files that belong to a checkpoint; None if state.json does not tell."""
    try:
        names = read_json(folder / STATE)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_right = isinstance(names, list) and MODEL in names
    if not is_right or not all(isinstance(name, str) and _FILE_NAME.fullmatch(name) for name in names):
        return None
    return list(names)


def complete_folders(checkpoints: Path) -> list[tuple[int, Path]]:
    """The complete checkpoints, each with its step, oldest first."""
    return [(step, folder) for step, folder in numbered_folders(checkpoints) if is_complete(folder)]


def is_complete(folder: Path) -> bool:
    """Whether all files and sidecars are there, with the recorded sizes."""
    names = tensor_files(folder)
    if names is None:
        return False
    for name in (STATE, *names):
        sidecar, file = read_sidecar(folder, name), folder / name
        if sidecar is None or not _is_own(file) or _size(file) != sidecar.bytes:
            return False
    return True


def numbered_folders(checkpoints: Path) -> list[tuple[int, Path]]:
    """The folders that are named like checkpoints, by step."""
    if not checkpoints.is_dir():
        return []
    matches = [(FOLDER_NAME.fullmatch(path.name), path) for path in checkpoints.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match and not path.is_symlink())


def is_finished(folder: Path) -> bool:
    """Whether a save once came to its end here: every worker vouched for its files."""
    names = tensor_files(folder)
    if names is not None:
        return len(_sidecars(folder)) == len(names) + 1
    return any((folder / (STATE + suffix)).exists() for suffix in _SIDECARS.values())


def _sidecars(folder: Path) -> list[Path]:
    return [file for suffix in _SIDECARS.values() for file in folder.glob(f"*{suffix}")]


def move_aside(folder: Path) -> Path:
    """Keep a damaged checkpoint for inspection, under a name that is never resumed from."""
    number = 1
    while (aside := folder.with_name(f"damaged-{folder.name}-{number}")).exists():
        number += 1
    return folder.rename(aside)


@dataclass(frozen=True)
class Sidecar:
    """The path of a file's sidecar."""

    algorithm: str
    checksum: object
    bytes: object


def read_sidecar(folder: Path, name: str) -> Sidecar | None:
    """A file's sidecar, of this format or an older one; None if there is none that can be used."""
    for algorithm, suffix in _SIDECARS.items():
        file = folder / (name + suffix)
        try:
            content = read_json(file) if _is_own(file) else None
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and {algorithm, "bytes"} <= content.keys():
            return Sidecar(algorithm, content[algorithm], content["bytes"])
    return None


def _size(file: Path) -> int | None:
    """A file's size; None if it has just been removed."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _is_own(file: Path) -> bool:
    """Whether a checkpoint's file is one, not a link to somewhere else: what is checked is then what is read."""
    return file.is_file() and not file.is_symlink()
