"""Where training starts: at the newest good checkpoint, at another run's weights, or at the beginning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from echelon.errors import CheckpointError, TrainingError
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import Checkpoint, choose_checkpoint, newest_good_checkpoint
from echelon.train.weights import Weights, choose_weights, load_weights

if TYPE_CHECKING:
    from echelon.train.loop import Training


def resume(training: Training) -> None:
    """Load the newest good checkpoint, or the weights that the recipe starts from. Collective."""
    checkpoint = agree_on_newest(training)
    if checkpoint is not None:
        load_checkpoint(training, checkpoint)
    elif training.recipe.train.init_from is not None:
        start_from(training, RunFolder(Path(training.recipe.train.init_from)))
    training.group.broadcast(training.flat.weights)


def roll_back(training: Training, reason: str) -> None:
    """Go back to the newest good checkpoint; TrainingError where there is none, or the second time. Collective."""
    training.keeper.saver.wait_written()
    checkpoint = agree_on_newest(training)
    if training.has_rolled_back or checkpoint is None:
        again = " again" if training.has_rolled_back else ""
        raise TrainingError(
            f"{reason}{again}; lower the learning rate, set train.clip_norm, or use bf16 or float32 in place of fp16"
        )
    load_checkpoint(training, checkpoint)
    training.has_rolled_back = True
    training.skipped_in_a_row = 0
    training.records.write("event", message=f"{reason}; going back to step {checkpoint.step}")


def agree_on_newest(training: Training) -> Checkpoint | None:
    """The newest good checkpoint. Worker 0 chooses, so that all take the same even where one is damaged. Collective."""
    checkpoints, group = training.run.checkpoints, training.group
    folder = None
    if group.is_first:
        checkpoint, messages = newest_good_checkpoint(checkpoints)
        for message in messages:
            training.records.write("event", message=message)
        folder = str(checkpoint.folder) if checkpoint else None
    folder = group.broadcast_json(folder)
    return choose_checkpoint(checkpoints, folder) if folder is not None else None


def load_checkpoint(training: Training, checkpoint: Checkpoint) -> None:
    """Weights, optimiser and state of a checkpoint, into `training`."""
    load_weights(training.model, Weights(checkpoint.load_model(), checkpoint.step, checkpoint.folder.name))
    training.state = checkpoint.load_state()
    try:
        training.optimiser.load_state(checkpoint.load_optimiser())
        training.precision.load_state(training.state.precision)
    except (KeyError, RuntimeError, TypeError) as error:
        raise CheckpointError(f"{checkpoint.folder} does not fit this recipe's optimiser: {error}") from error


def start_from(training: Training, other: RunFolder) -> None:
    """The best weights of another run, for fine-tuning."""
    weights = choose_weights(other.require(), "best")
    load_weights(training.model, weights)
    training.records.write("event", message=f"starting from {weights.label} of {other.path}")
