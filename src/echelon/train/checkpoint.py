"""Checkpoints: safetensors and JSON, each file with a sidecar that holds its size and checksum.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import safetensors.torch
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from torch import Tensor

from echelon.errors import CheckpointError
from echelon.runfolder import finish_removals, parse_json, read_json, remove_folder, write_atomically
from echelon.train.checksum import ALGORITHM, OLDER_ALGORITHM, checksum_of, checksum_of_file
from echelon.train.tensorfile import Written

FORMAT = 3
_READABLE_FORMATS = (2, 3)
"""Format 2 differs in its sidecars, which are called NAME.sha256.json and hold SHA-256."""
MODEL, STATE = "model.safetensors", "state.json"
_SIDECARS = {ALGORITHM: ".checksum.json", OLDER_ALGORITHM: ".sha256.json"}
_EXCHANGE = "exchange/"
_FOLDER_NAME = re.compile(r"step-(\d{8,})")
_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.safetensors")


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
    checkpoint_every: int | None = None
    """What `checkpoint.every = "auto"` became."""
    awaits_scoring: bool = False
    """This step's scoring was broken off, and comes first when the run is resumed."""

    def to_json(self, files: Sequence[str]) -> str:
        best = vars(self.best) if self.best else None
        return (
            json.dumps({"format": FORMAT, "files": list(files), **vars(self), "best": best}, indent=2) + "\n"
        )

    @staticmethod
    def from_json(text: str) -> TrainingState:
        _STATE.validate_json(text, strict=True)
        values = parse_json(text)
        if values.pop("format") not in _READABLE_FORMATS:
            raise ValueError("written by another version of Echelon")
        values.pop("files")
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
        """The optimiser's state, from however many workers wrote it."""
        return {name: tensor for name, tensor in self._shards() if not name.startswith(_EXCHANGE)}

    def load_exchange(self) -> dict[str, Tensor]:
        """The exchange's state, of all workers that wrote here."""
        return {
            name.removeprefix(_EXCHANGE): tensor
            for name, tensor in self._shards()
            if name.startswith(_EXCHANGE)
        }

    def _shards(self) -> Iterator[tuple[str, Tensor]]:
        for file in tensor_files(self.folder) or ():
            if file != MODEL:
                yield from self._load_tensors(file).items()

    def load_state(self) -> TrainingState:
        try:
            state = TrainingState.from_json((self.folder / STATE).read_text())
            if state.step != self.step:
                raise ValueError(f"it is of step {state.step}")
            return state
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._refuse(STATE, error)

    def fingerprint(self) -> str:
        """Tells checkpoints of the same step apart: the recorded checksum of the weights."""
        sidecar = _read_sidecar(self.folder, MODEL)
        return str(sidecar.checksum) if sidecar else ""

    def verify(self) -> None:
        """Compare every file with its checksum; raises CheckpointError that names the damaged file."""
        for name in (STATE, *(tensor_files(self.folder) or ())):
            sidecar = _read_sidecar(self.folder, name)
            if sidecar is None or self._checksum(name, sidecar.algorithm) != sidecar.checksum:
                self._refuse(name, ValueError("its checksum is not the recorded one"))

    def _checksum(self, name: str, algorithm: str) -> str:
        try:
            return checksum_of_file(self.folder / name, algorithm)
        except OSError as error:
            self._refuse(name, error)

    def _load_tensors(self, name: str) -> dict[str, Tensor]:
        try:
            return safetensors.torch.load_file(self.folder / name)
        except (OSError, SafetensorError) as error:
            self._refuse(name, error)

    def _refuse(self, name: str, error: Exception) -> NoReturn:
        raise CheckpointError(f"{self.folder / name} cannot be used: {error}") from error


def prefixed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The exchange's state under names that are not the optimiser's, beside which it is saved."""
    return {_EXCHANGE + name: tensor for name, tensor in tensors.items()}


def checkpoint_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"step-{step:08d}"


def best_beside(folder: Path) -> Path | None:
    """Where the checkpoint belongs that the one in `folder` names as the best; None where it names none."""
    try:
        best = TrainingState.from_json((folder / STATE).read_text()).best
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return checkpoint_folder(folder.parent, best.step) if best else None


def awaits_scoring(folder: Path) -> bool:
    """Whether the checkpoint in `folder` was saved when the scoring of its step was broken off."""
    try:
        return TrainingState.from_json((folder / STATE).read_text()).awaits_scoring
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def shard_file(rank: int, size: int) -> str:
    """The file that holds worker `rank`'s share of the optimiser's state."""
    return f"optimiser-{rank}-of-{size}.safetensors"


def list_checkpoints(checkpoints: Path) -> list[Checkpoint]:
    """The complete checkpoints, oldest first. Sizes are checked here, checksums by `verify`."""
    return [Checkpoint(folder, step) for step, folder in _numbered(checkpoints) if is_complete(folder)]


def newest_good_checkpoint(checkpoints: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose checksums are right; damaged ones are moved aside, a message for each.

    Only for the one worker that resumes the run: it renames folders, and removes what a killed pruning left.
    """
    finish_removals(checkpoints)
    messages: list[str] = []
    for step, folder in reversed(_numbered(checkpoints)):
        try:
            if is_complete(folder):
                checkpoint = Checkpoint(folder, step)
                checkpoint.verify()
                checkpoint.load_state()
                return checkpoint, messages
            if not _is_finished(folder):
                continue  # a save that a crash cut short: not damaged, never whole
            problem = f"{folder}: a file is missing or has another size than recorded"
        except CheckpointError as error:
            problem = str(error)
        messages.append(
            f"{problem}; it is kept aside as {move_aside(folder).name}, and an older checkpoint used"
        )
    return None, messages


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
        by_step = {checkpoint.step: checkpoint for checkpoint in found}
        if best.step not in by_step:
            raise CheckpointError(
                f"{checkpoints}: the best checkpoint, of step {best.step}, is not whole; use last"
            )
        chosen = by_step[best.step]
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


def scheduled(found: Sequence[Checkpoint], every: int | None) -> list[Checkpoint]:
    """The checkpoints that any run of the recipe has: those of the interval, and the last. Interruptions add others."""
    return [c for c in found if every is None or c.step % every == 0 or c is found[-1]]


def prune_checkpoints(
    checkpoints: Path, keep: int, best: Best | None, every: int | None = None, held: Sequence[Path] = ()
) -> None:
    """Remove all but the newest `keep` of the interval, the best and what is `held`, and saves cut short before the
    newest whole."""
    finish_removals(checkpoints)
    found = list_checkpoints(checkpoints)
    complete = [checkpoint.step for checkpoint in found]
    wanted = {*(c.step for c in scheduled(found, every)[-keep:]), *([best.step] if best else [])}
    wanted |= {checkpoint.step for checkpoint in found if checkpoint.folder in held}
    newest = max(complete, default=0)
    for step, folder in _numbered(checkpoints):
        if step < newest and step not in wanted and (step in complete or not _is_finished(folder)):
            remove_folder(folder)


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
    """Vouch for a file that is on the disk."""
    content = {ALGORITHM: written.checksum, "bytes": written.bytes}
    write_atomically(folder / (name + _SIDECARS[ALGORITHM]), json.dumps(content) + "\n")


def tensor_files(folder: Path) -> list[str] | None:
    """The tensor files that belong to a checkpoint; None where state.json does not tell."""
    try:
        names = read_json(folder / STATE)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_right = isinstance(names, list) and MODEL in names
    if not is_right or not all(isinstance(name, str) and _FILE_NAME.fullmatch(name) for name in names):
        return None
    return list(names)


def is_complete(folder: Path) -> bool:
    """Whether all files and sidecars are there, with the recorded sizes."""
    names = tensor_files(folder)
    if names is None:
        return False
    for name in (STATE, *names):
        sidecar, file = _read_sidecar(folder, name), folder / name
        if sidecar is None or not _is_own(file) or _size(file) != sidecar.bytes:
            return False
    return True


def weights_digest(weights: Tensor) -> int:
    """The sum of the weights' bits taken as whole numbers: equal weights have equal sums, one other bit another."""
    return int(weights.detach().view(torch.int32).sum())


def _numbered(checkpoints: Path) -> list[tuple[int, Path]]:
    """The folders that are named like checkpoints, by step."""
    if not checkpoints.is_dir():
        return []
    matches = [(_FOLDER_NAME.fullmatch(path.name), path) for path in checkpoints.iterdir()]
    return sorted((int(match[1]), path) for match, path in matches if match and not path.is_symlink())


def _is_finished(folder: Path) -> bool:
    """Whether a save once came to its end here: every worker vouched for its files."""
    names = tensor_files(folder)
    if names is not None:
        return len(_sidecars(folder)) == len(names) + 1
    return any((folder / (STATE + suffix)).exists() for suffix in _SIDECARS.values())


def _sidecars(folder: Path) -> list[Path]:
    return [file for suffix in _SIDECARS.values() for file in folder.glob(f"*{suffix}")]


def move_aside(folder: Path) -> Path:
    """Keep a damaged checkpoint for whoever wants to look at it, under a name that is never resumed from."""
    number = 1
    while (aside := folder.with_name(f"damaged-{folder.name}-{number}")).exists():
        number += 1
    return folder.rename(aside)


def _checkpoint_at(folder: Path) -> Checkpoint:
    match = _FOLDER_NAME.fullmatch(folder.resolve().name)
    if match is None or not is_complete(folder):
        raise CheckpointError(
            f"{folder}: is not a complete checkpoint folder; use best, last, average or a folder such as step-00001000"
        )
    checkpoint = Checkpoint(folder, int(match[1]))
    checkpoint.verify()
    return checkpoint


@dataclass(frozen=True)
class _Sidecar:
    """What vouches for a file."""

    algorithm: str
    checksum: object
    bytes: object


def _read_sidecar(folder: Path, name: str) -> _Sidecar | None:
    """A file's sidecar, of this format or an older one; None where there is none that can be used."""
    for algorithm, suffix in _SIDECARS.items():
        file = folder / (name + suffix)
        try:
            content = read_json(file) if _is_own(file) else None
        except (OSError, ValueError):
            continue
        if isinstance(content, dict) and {algorithm, "bytes"} <= content.keys():
            return _Sidecar(algorithm, content[algorithm], content["bytes"])
    return None


def _size(file: Path) -> int | None:
    """A file's size; None where it has just been removed."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return None


def _is_own(file: Path) -> bool:
    """Whether a checkpoint's file is one, not a link to somewhere else: what is checked is then what is read."""
    return file.is_file() and not file.is_symlink()
