"""Loading checkpoints, choosing among them, and removing those that no longer serve (files/checkpoint_layout.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from echelon.errors import CheckpointError, UserError
from echelon.files.checkpoint_layout import (
    FOLDER_NAME,
    MODEL,
    STATE,
    Best,
    TrainingState,
    complete_folders,
    is_complete,
    is_finished,
    move_aside,
    numbered_folders,
    read_sidecar,
    tensor_files,
)
from echelon.files.checksum import checksum_of_file
from echelon.models.lora import merge_tensors
from echelon.runfolder import finish_removals, read_file, remove_folder

_EXCHANGE = "exchange/"


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    step: int

    def load_model(self) -> dict[str, Tensor]:
        """The model's tensors by name, mapped from the file; adapters (LoRA) are apart."""
        return self._load_tensors(MODEL)

    def load_merged(self) -> dict[str, Tensor]:
        """The tensors of a plain model: adapters are merged into its weights."""
        try:
            return merge_tensors(self.load_model())
        except ValueError as error:
            self._refuse(MODEL, error)

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
            state = TrainingState.from_json(read_file(self.folder / STATE))
            if state.step != self.step:
                raise ValueError(f"it is of step {state.step}")
            return state
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._refuse(STATE, error)

    def fingerprint(self) -> str:
        """Tells checkpoints of the same step apart: the recorded checksum of the weights."""
        sidecar = read_sidecar(self.folder, MODEL)
        return str(sidecar.checksum) if sidecar else ""

    def verify(self) -> None:
        """Compare every file with its checksum; raises CheckpointError that names the damaged file."""
        for name in (STATE, *(tensor_files(self.folder) or ())):
            sidecar = read_sidecar(self.folder, name)
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


def list_checkpoints(checkpoints: Path) -> list[Checkpoint]:
    """The complete checkpoints, oldest first. Sizes are checked here, checksums by `verify`."""
    return [Checkpoint(folder, step) for step, folder in complete_folders(checkpoints)]


def newest_good_checkpoint(checkpoints: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint whose checksums are right; damaged ones are moved aside, a message for each.

    Only for the one worker that resumes the run: it renames folders, and removes what a killed pruning left.
    """
    finish_removals(checkpoints)
    messages: list[str] = []
    for step, folder in reversed(numbered_folders(checkpoints)):
        try:
            if is_complete(folder):
                checkpoint = Checkpoint(folder, step)
                checkpoint.verify()
                checkpoint.load_state()
                return checkpoint, messages
            if not is_finished(folder):
                continue  # a save that a crash cut short: not damaged, just incomplete
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
        return _checkpoint_at(Path(which), checkpoints)
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
        for name, tensor in checkpoint.load_merged().items():
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
    for step, folder in numbered_folders(checkpoints):
        if step < newest and step not in wanted and (step in complete or not is_finished(folder)):
            remove_folder(folder)


def weights_digest(weights: Tensor) -> int:
    """The sum of the weights' bits taken as whole numbers: equal weights have equal sums, one other bit another."""
    return int(weights.detach().view(torch.int32).sum())


def _checkpoint_at(folder: Path, checkpoints: Path) -> Checkpoint:
    match = FOLDER_NAME.fullmatch(folder.resolve().name)
    if match is None or not is_complete(folder):
        there = ", ".join(path.name for _, path in complete_folders(checkpoints)) or "none yet"
        kind = CheckpointError if match and is_finished(folder) else UserError
        raise kind(
            f"{folder}: is not a complete checkpoint; use best, last, average or one of {checkpoints}: {there}"
        )
    checkpoint = Checkpoint(folder, int(match[1]))
    checkpoint.verify()
    return checkpoint
