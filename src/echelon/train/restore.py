"""Where training starts: at the newest good checkpoint, at another run's weights, or at the beginning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.errors import CheckpointError, TrainingError, UserError
from echelon.files.checkpoint_layout import (
    TrainingState,
    checkpoint_folder,
    default_choice,
    is_complete,
    move_aside,
)
from echelon.files.checksum import new_checksum
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import Checkpoint, choose_checkpoint, newest_good_checkpoint
from echelon.train.exchange import Exchange
from echelon.train.mirror import Mirror, fetch_newest
from echelon.train.model_state import ModelState
from echelon.train.weights import (
    Weights,
    choose_weights,
    load_weights,
    onto_adapters,
    require_trained_head,
    without_other_head,
)


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
    """Where training starts, once the model is loaded."""

    state: TrainingState
    must_save: bool = False
    """Whether some run folder lacks the checkpoint."""
    num_skipped: int = 0
    """Steps that were skipped in a row before that."""


@dataclass(frozen=True)
class Survivor:
    """A worker that has kept its weights while others of its group were lost: where training stands there."""

    state: TrainingState
    """The state after the last step that it has finished, as are its weights and its optimiser."""
    shared: Mapping[str, Tensor]
    """The exchange's state then."""
    num_skipped: int = 0
    """Steps that were skipped in a row."""

    @property
    def progress(self) -> list[int]:
        """Compares survivors: the one with more progress has seen something that the other has not."""
        state = self.state
        return [state.step, not state.awaits_scoring, state.checkpoint_every is not None]


@dataclass(frozen=True)
class Healing:
    """The worker that sends the others what they lack."""

    number: int
    """How many workers have kept their weights."""
    holder: int
    """Rank of the first of them that is ahead."""
    is_here: bool
    """Whether this worker is as far as that."""
    num_skipped: int
    """Steps that were skipped in a row."""


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

    def find_survivors(self, survivor: Survivor | None) -> Healing | None:
        """The workers that have kept their weights, of which this may be one; None if there is none."""
        answers = self.group.gather_json(survivor and [survivor.progress, survivor.num_skipped])
        there = [answer for answer in answers if answer is not None]
        if not there:
            return None
        furthest = max(there)
        is_here = survivor is not None and survivor.progress == furthest[0]
        return Healing(len(there), answers.index(furthest), is_here, furthest[1])

    def heal(self, healing: Healing, survivor: Survivor | None) -> Restored:
        """Send the state of the survivor that is ahead to all who are not as far, and compare."""
        state = TrainingState()
        if survivor is not None and healing.is_here:
            state = survivor.state
            state.precision = self.model.precision.state()
            self.exchange.load_state(survivor.shared)
        ahead = Newest(state.step, healing.holder, healing.is_here, is_everywhere=False)
        state = self.pass_on(ahead, state, self.model.optimiser.state())
        self._require_whole_best(state)
        self._require_same_everywhere()
        if self.group.is_first:
            message = (
                f"continuing after step {state.step} with the weights that {healing.number} of "
                f"{self.group.size} workers kept"
            )
            self.records.write("event", step=state.step, message=message)
        # A lost worker may have been writing its part of this step's checkpoint.
        is_best = state.best is not None and state.best.step == state.step
        must_save = state.step > 0 and (is_best or healing.num_skipped == 0)
        return Restored(state, must_save, healing.num_skipped)

    def _require_whole_best(self, state: TrainingState) -> None:
        """CheckpointError if the best checkpoint was being written when a worker was lost: its weights are nowhere, so
        training must go back to before it."""
        best, is_missing = state.best, False
        if best is not None and best.step < state.step and self.group.keeps_folder:
            is_missing = not is_complete(checkpoint_folder(self.run.checkpoints, best.step))
        if any(self.group.gather_json(is_missing)):
            raise CheckpointError("a worker was lost while the best checkpoint was being written")

    def _require_same_everywhere(self) -> None:
        """TrainingError if workers differ after all."""
        model = self.model
        optimiser = model.optimiser.state()
        tensors = (
            *model.module.state_dict().values(),
            *model.average.averages,
            *(optimiser[name] for name in sorted(optimiser)),
            *self.exchange.state().shared.values(),
        )
        checksum = new_checksum()
        for tensor in tensors:
            checksum.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        digests = self.group.gather_json(checksum.hexdigest())
        if len(set(digests)) > 1:
            raise TrainingError(f"workers that were healed differ from the others ({digests}); this is a bug")

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
        newest, model = self._agree_on_newest(), self.model
        if newest is None:
            return None
        folder = checkpoint_folder(self.run.checkpoints, newest.step)
        state, optimiser = TrainingState(), dict[str, Tensor]()
        if newest.is_here:
            checkpoint = choose_checkpoint(self.run.checkpoints, folder)
            state, optimiser = self._load(checkpoint), model.average.leave_out(checkpoint.load_optimiser())
            if self.mirror is not None:  # what ended the run may have ended an upload
                self.mirror.put(folder)
        if not newest.is_everywhere:
            state = self.pass_on(newest, state, optimiser or model.optimiser.state())
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
            model.optimiser.load_state(model.average.leave_out(optimiser))
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
            if not is_whole:
                require_trained_head(self.model.module)
            load_weights(self.model.module, onto_adapters(self.model.module, weights))
        except CheckpointError as error:
            raise UserError(f"train.init_from = {str(other.path)!r}: {error}") from error
        head = "" if is_whole else ", with a new last layer for other classes"
        self.records.write("event", message=f"starting from {weights.label} of {other.path}{head}")
