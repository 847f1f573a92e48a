"""Where training starts: at the newest good checkpoint, at another run's weights, or at the beginning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from echelon.errors import CheckpointError, TrainingError, UserError
from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, move_aside
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import Checkpoint, choose_checkpoint, newest_good_checkpoint
from echelon.train.mirror import fetch_newest
from echelon.train.weights import Weights, choose_weights, load_weights

if TYPE_CHECKING:
    from echelon.train.loop import Training


def resume(training: Training) -> None:
    """Load the newest good checkpoint, or the weights that the recipe starts from. Collective."""
    fetch_from_mirror(training)
    newest = agree_on_newest(training)
    if newest is not None:
        load_newest(training, newest)
        return
    if training.recipe.train.init_from is not None and training.group.is_first:
        start_from(training, RunFolder(Path(training.recipe.train.init_from)))
    training.group.broadcast(training.flat.weights)
    for (
        buffer
    ) in training.model.buffers():  # what was computed from data may differ in its last bits between hosts
        training.group.broadcast(buffer)
    training.average.start()


def fetch_from_mirror(training: Training) -> None:
    """A newer checkpoint than the run folder's, where there is one at the address, which the first worker passes on,
    and the best. Collective."""
    address = training.recipe.checkpoint.mirror
    if address is None:
        return
    if training.group.is_first:
        for name in fetch_newest(address, training.run, training.group.heart):
            training.records.write("event", message=f"{name} was fetched from {address}")
    training.group.await_first("fetching")


def roll_back(training: Training, reason: str) -> None:
    """Go back to the newest good checkpoint; TrainingError where there is none, or the second time. Collective."""
    training.keeper.saver.wait_written()
    newest = agree_on_newest(training)
    if training.has_rolled_back or newest is None:
        again = " again" if training.has_rolled_back else ""
        raise TrainingError(
            f"{reason}{again}; lower the learning rate, set train.clip_norm, or use bf16 or float32 in place of fp16"
        )
    load_newest(training, newest)
    training.has_rolled_back = True
    training.skipped_in_a_row = 0
    training.records.write("event", message=f"{reason}; going back to step {newest.step}")


@dataclass(frozen=True)
class Newest:
    """The newest good checkpoint that any worker sees."""

    step: int
    holder: int
    """Rank of the first worker that has it."""
    is_here: bool
    """Whether this worker has it too."""
    is_everywhere: bool


def agree_on_newest(training: Training) -> Newest | None:
    """The newest good checkpoint of all run folders. Each folder's keeper looks, so that all workers take the same
    even where one is damaged or missing. Collective."""
    group, found = training.group, None
    if group.keeps_folder:
        checkpoint, messages = newest_good_checkpoint(training.run.checkpoints)
        for message in messages:
            training.records.write("event", message=message)
        found = [checkpoint.step, checkpoint.fingerprint()] if checkpoint else None
    answers = group.gather_json(found)
    there = [answer for answer in answers if answer is not None]
    if not there:
        return None
    newest = max(there, key=lambda answer: answer[0])
    holder = answers.index(newest)
    keepers = set(group.gather_json(group.folder_keeper))
    have = {rank for rank in keepers if answers[rank] == newest}
    return Newest(newest[0], holder, group.folder_keeper in have, have == keepers)


def load_newest(training: Training, newest: Newest) -> None:
    """Weights, optimiser and state of a checkpoint, into `training`; whoever lacks it gets it, and keeps it too.
    Collective."""
    folder = checkpoint_folder(training.run.checkpoints, newest.step)
    optimiser: dict[str, Tensor] = {}
    if newest.is_here:
        checkpoint = choose_checkpoint(training.run.checkpoints, folder)
        load_checkpoint(training, checkpoint)
        optimiser = checkpoint.load_optimiser()
        if training.keeper.mirror is not None:  # what ended the run may have ended an upload
            training.keeper.mirror.put(folder)
    if not newest.is_everywhere:
        pass_on(training, newest, optimiser or training.optimiser.state())
        if training.group.keeps_folder and not newest.is_here and folder.exists():
            move_aside(folder)  # of the same step, but not the same: two parts of a cluster went on alone
        training.keeper.save(training.state)


def pass_on(training: Training, newest: Newest, saved: dict[str, Tensor]) -> None:
    """The holder's weights, `saved` optimiser and state everywhere. What belongs to a worker is kept where its own disk
    has it, and lost with its disk otherwise. Collective."""
    group, holder, device = training.group, newest.holder, training.flat.weights.device
    state = group.broadcast_json(training.state.to_json(()), holder)
    for tensor in (*training.model.state_dict().values(), *training.average.averages):
        group.broadcast(tensor, holder)
    optimiser = group.broadcast_tensors(saved, holder, device)
    if not newest.is_here:
        training.exchange.load_state({})
        training.optimiser.load_state(optimiser)
    for tensor in training.exchange.shared_state().values():
        group.broadcast(tensor, holder)
    training.state = TrainingState.from_json(state)
    training.precision.load_state(training.state.precision)


def load_checkpoint(training: Training, checkpoint: Checkpoint) -> None:
    """Weights, optimiser and state of a checkpoint on this worker's disk, into `training`."""
    load_weights(training.model, Weights(checkpoint.load_model(), checkpoint.step, checkpoint.folder.name))
    training.state = checkpoint.load_state()
    try:
        state = checkpoint.load_optimiser()
        training.optimiser.load_state(state)
        training.average.load_state(state)
        training.exchange.load_state(checkpoint.load_exchange())
        training.precision.load_state(training.state.precision)
    except (KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint.folder} does not fit this recipe's optimiser or exchange: {error}"
        ) from error


def start_from(training: Training, other: RunFolder) -> None:
    """The best weights of another run, for fine-tuning; UserError where it has none that fit."""
    try:
        weights = choose_weights(other.require(), "best")
        load_weights(training.model, weights)
    except CheckpointError as error:
        raise UserError(f"train.init_from = {str(other.path)!r}: {error}") from error
    training.records.write("event", message=f"starting from {weights.label} of {other.path}")
