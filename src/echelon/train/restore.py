"""Where training starts: at the newest good checkpoint, at another run's weights, or at the beginning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from echelon.comm.group import Group
from echelon.errors import CheckpointError, UserError
from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, default_choice, move_aside
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import Checkpoint, choose_checkpoint, newest_good_checkpoint
from echelon.train.exchange import Exchange
from echelon.train.mirror import Mirror, fetch_newest
from echelon.train.model_state import ModelState
from echelon.train.weights import Weights, choose_weights, load_weights, without_other_head


@dataclass(frozen=True)
class Newest:
    """The newest good checkpoint that any worker sees."""

    step: int
    holder: int
    """Rank of the first worker that has it."""
    is_here: bool
    """Whether this worker has it too."""
    is_everywhere: bool


@dataclass(frozen=True)
class Restored:
    """Where training starts, the model being there already."""

    state: TrainingState
    must_save: bool = False
    """Whether some run folder lacks the checkpoint."""


@dataclass(frozen=True)
class Restorer:
    """Brings a worker's model back to a checkpoint, together with all other workers'. Every method is collective."""

    recipe: Recipe
    run: RunFolder
    group: Group
    records: RecordWriter
    model: ModelState
    exchange: Exchange
    mirror: Mirror | None = None

    def start(self) -> Restored:
        """Load the newest good checkpoint, or the weights that the recipe starts from."""
        self.fetch_from_mirror()
        restored = self.load_newest()
        if restored is not None:
            return restored
        if self.recipe.train.init_from is not None and self.group.is_first:
            self._start_from(RunFolder(Path(self.recipe.train.init_from)))
        self.group.broadcast(self.model.flat.weights)
        for parameter in self.model.module.parameters():
            if not parameter.requires_grad:  # frozen, so it is not among the flat weights
                self.group.broadcast(parameter.data)
        for buffer in self.model.module.buffers():
            # What was computed from data may differ in its last bits between hosts.
            self.group.broadcast(buffer)
        self.model.average.start()
        return Restored(TrainingState())

    def fetch_from_mirror(self) -> None:
        """Fetch a newer checkpoint than the run folder's, if the address has one, and the best; the first worker passes
        them on."""
        address = self.recipe.checkpoint.mirror
        if address is None:
            return
        if self.group.is_first:
            for name in fetch_newest(address, self.run, self.group.heart):
                self.records.write("event", message=f"{name} was fetched from {address}")
        self.group.await_first("fetching")

    def load_newest(self) -> Restored | None:
        """Load the newest good checkpoint of all run folders; whoever lacks it gets it. None if there is none."""
        newest = self._agree_on_newest()
        if newest is None:
            return None
        folder = checkpoint_folder(self.run.checkpoints, newest.step)
        state, optimiser = TrainingState(), dict[str, Tensor]()
        if newest.is_here:
            checkpoint = choose_checkpoint(self.run.checkpoints, folder)
            state, optimiser = self._load(checkpoint), checkpoint.load_optimiser()
            if self.mirror is not None:  # what ended the run may have ended an upload
                self.mirror.put(folder)
        if not newest.is_everywhere:
            state = self.pass_on(newest, state, optimiser or self.model.optimiser.state())
            if self.group.keeps_folder and not newest.is_here and folder.exists():
                move_aside(folder)  # of the same step, but not the same: two parts of a cluster went on alone
        return Restored(state, must_save=not newest.is_everywhere)

    def _agree_on_newest(self) -> Newest | None:
        """The newest good checkpoint of all run folders. One worker of each folder looks, so that all take the
        same even if one is damaged or missing."""
        group, found = self.group, None
        if group.keeps_folder:
            checkpoint, messages = newest_good_checkpoint(self.run.checkpoints)
            for message in messages:
                self.records.write("event", message=message)
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

    def pass_on(self, newest: Newest, state: TrainingState, saved: dict[str, Tensor]) -> TrainingState:
        """Send the holder's weights, `saved` optimiser and `state` to all; returns the state. A worker's own part is
        kept if its own disk has it, and lost with its disk otherwise."""
        group, model = self.group, self.model
        text = group.broadcast_json(state.to_json(()), newest.holder)
        for tensor in (*model.module.state_dict().values(), *model.average.averages):
            group.broadcast(tensor, newest.holder)
        optimiser = group.broadcast_tensors(saved, newest.holder, model.flat.weights.device)
        if not newest.is_here:
            self.exchange.load_state({})
            model.optimiser.load_state(optimiser)
        for tensor in self.exchange.state().shared.values():
            group.broadcast(tensor, newest.holder)
        state = TrainingState.from_json(text)
        model.precision.load_state(state.precision)
        return state

    def _load(self, checkpoint: Checkpoint) -> TrainingState:
        """Weights and optimiser of a checkpoint on this worker's disk, into the model; returns its state."""
        model = self.model
        weights = Weights(checkpoint.load_model(), checkpoint.step, checkpoint.folder.name)
        load_weights(model.module, weights)
        state = checkpoint.load_state()
        try:
            optimiser = checkpoint.load_optimiser()
            model.optimiser.load_state(optimiser)
            model.average.load_state(optimiser)
            self.exchange.load_state(checkpoint.load_exchange())
            model.precision.load_state(state.precision)
        except (KeyError, RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"{checkpoint.folder} does not fit this recipe's optimiser or exchange: {error}"
            ) from error
        return state

    def _start_from(self, other: RunFolder) -> None:
        """Load the best weights of another run, for fine-tuning, or its last if none were scored; UserError if it has
        none that fit. A network for other classes keeps its new last layer."""
        try:
            weights = choose_weights(other.require(), default_choice(other.checkpoints, "best"))
            weights, is_whole = without_other_head(self.model.module, weights)
            load_weights(self.model.module, weights)
        except CheckpointError as error:
            raise UserError(f"train.init_from = {str(other.path)!r}: {error}") from error
        head = "" if is_whole else ", with a new last layer for other classes"
        self.records.write("event", message=f"starting from {weights.label} of {other.path}{head}")
