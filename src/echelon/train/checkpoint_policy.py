"""When checkpoints are taken, that they get written, and what is cleared away after them."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from echelon.comm.group import Group
from echelon.errors import CheckpointError, TrainingError
from echelon.files.checkpoint_layout import (
    TrainingState,
    awaits_scoring,
    checkpoint_folder,
    clear_for_saving,
    is_complete,
)
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.resolve.interval import SavingCost, write_interval
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import prefixed, prune_checkpoints, weights_digest
from echelon.train.checkpoint_writer import CheckpointWriter, SaveJob, plan_files
from echelon.train.exchange import Exchange
from echelon.train.mirror import Mirror
from echelon.train.model_state import ModelState

PROBE_STEP, RESOLVE_STEP = 10, 30
"""If the interval is "auto": the step whose save is measured, and the step at which the interval is chosen, both
counted from where this start of the run began."""
_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 60.0
_FINAL_TRIES = 5


@dataclass
class PendingSave:
    """A checkpoint that this worker has begun to save."""

    folder: Path
    state: TrainingState
    started: float


@dataclass
class CheckpointPolicy:
    """One worker's view of the run's checkpoints. `save`, `finish` and `resolve_interval` are collective."""

    run: RunFolder
    group: Group
    recipe: Recipe
    records: RecordWriter
    model: ModelState
    exchange: Exchange
    writer: CheckpointWriter
    mirror: Mirror | None
    """Where checkpoints go as well."""
    first_step: int
    """Where this start of the run began."""
    num_hosts: int = 1
    may_write: Callable[[], None] = lambda: None
    """Raises if this worker's generation has been replaced, so that it no longer owns the run folder."""
    _pending: PendingSave | None = None
    _is_overdue: bool = False
    _retry_at: float | None = None
    _retry_s: float = _FIRST_RETRY_S
    _quiet_steps: list[float] = field(default_factory=list)
    _saving_steps: list[float] = field(default_factory=list)
    _blocked_s: float = 0.0
    _num_saves: int = 0

    def is_due(self, state: TrainingState, *, may_save: bool = True) -> bool:
        """Whether the interval asks for a checkpoint after this step, or did while it was not to be saved: the same
        answer on every worker."""
        every = self._every(state)
        is_time = state.step - self.first_step == PROBE_STEP if every is None else state.step % every == 0
        self._is_overdue = self._is_overdue or is_time
        return self._is_overdue and may_save

    def _every(self, state: TrainingState) -> int | None:
        every = self.recipe.checkpoint.every
        return state.checkpoint_every if every == "auto" else every

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run has a checkpoint, or one is being saved."""
        return self.first_step > 0 or self._num_saves > 0

    @property
    def wants_retry(self) -> bool:
        """Whether this worker votes for saving again after a save that failed here."""
        return self._retry_at is not None and time.monotonic() >= self._retry_at

    def save(self, state: TrainingState) -> None:
        """Begin a checkpoint of this step, after making sure that all workers hold the same weights. Collective."""
        self.writer.wait_written()
        self._is_overdue = False
        started = time.perf_counter()
        folder = checkpoint_folder(self.run.checkpoints, state.step)
        exists = self._make_room(folder) if self.group.keeps_folder else False
        digest = weights_digest(self.model.flat.weights) if self.group.size > 1 else 0
        answers = self.group.gather_json([digest, exists])
        self._conclude()  # by now every worker has written its part of the checkpoint before
        if len({digest for digest, _ in answers}) > 1:
            raise TrainingError(f"step {state.step}: the workers' weights differ ({answers}); this is a bug")
        part = self.exchange.optimiser_part()
        if not answers[self.group.folder_keeper][1]:
            self._pending = PendingSave(folder, copy.deepcopy(state), time.perf_counter())
            self._retry_at = None
            self._num_saves += 1
            self.writer.start(self._job(self._pending, part))
        self._blocked_s += time.perf_counter() - started

    def _make_room(self, folder: Path) -> bool:
        """Clear what an unfinished save left; whether this very checkpoint is there already, whole.

        One that was saved before its step had been scored is saved again, with the score.
        """
        if is_complete(folder) and not awaits_scoring(folder):
            return True
        try:
            self.may_write()
            clear_for_saving(folder)
        except (OSError, TrainingError) as error:
            self._note_failure(error)  # the writer will fail as well, and say so; training continues
        return False

    def _job(self, pending: PendingSave, part: dict[str, Tensor] | None) -> SaveJob:
        """`part` is this worker's of the optimiser, if it is spread over the workers."""
        weights, sharers = self.model.average.saved_model(), self.group.sharers
        exchange = self.exchange.state()
        optimiser = self.model.optimiser.state() if part is None else {}
        own = prefixed(exchange.own) | (part or {})
        state = optimiser | self.model.average.saved_state() | prefixed(exchange.shared)
        files, names = plan_files(weights, state, sharers.rank, sharers.size, own)
        vouched = pending.state if self.group.keeps_folder else None
        return SaveJob(pending.folder, files, vouched, names, self.may_write)

    def wait_copied(self) -> None:
        """Return when the weights may change."""
        self.writer.wait_copied()

    def after_step(self, seconds: float | None = None) -> None:
        """See how far the save under way is; `seconds` is how long the step took."""
        if seconds is not None:
            (self._saving_steps if self.writer.is_writing else self._quiet_steps).append(seconds)
        if self.writer.is_writing:
            return
        error = self.writer.take_error()
        if self._pending is None:
            if error is not None:
                self.records.write("event", message=f"old checkpoints could not be removed: {error}")
        elif error is not None:
            self._note_failure(error)
            self._pending = None
        elif not self.group.keeps_folder:
            self._pending = None
        elif is_complete(self._pending.folder):  # the other workers' files are there as well
            self._note_success(self._pending)
            self._pending = None

    def _note_failure(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + self._retry_s
        message = (
            f"saving failed: {error}; training continues, and saving is tried again in {self._retry_s:g} s"
        )
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)
        self.records.write("event", message=message)

    def _note_success(self, pending: PendingSave) -> None:
        self._retry_s = _FIRST_RETRY_S
        size = sum(file.stat().st_size for file in pending.folder.iterdir())
        seconds = round(time.perf_counter() - pending.started, 4)
        step, name = pending.state.step, pending.folder.name
        self.records.write("checkpoint", step=step, name=name, bytes=size, seconds=seconds)
        if self.mirror is not None:
            self.mirror.put(pending.folder)
        self.writer.tidy(lambda: self._prune(pending.state))

    def _prune(self, state: TrainingState) -> None:
        held = self.mirror.held if self.mirror is not None else ()
        keep, every = self.recipe.checkpoint.keep, self._every(state)
        prune_checkpoints(self.run.checkpoints, keep, state.best, every, held)

    def finish(self, state: TrainingState) -> None:
        """Return when this step's checkpoint is on the disk, whole; CheckpointError if it cannot be. Collective."""
        for attempt in range(_FINAL_TRIES):
            self.writer.wait_written()
            problems = [text for text in self.group.gather_json(self._problem()) if text]
            if not problems:
                self._conclude()
                self.group.barrier()  # nobody looks at the checkpoints while worker 0 prunes them
                return
            self.records.write("event", message=f"saving failed: {problems[0]}; trying again")
            time.sleep(min(2.0**attempt, 10.0))
            self.save(state)
        raise CheckpointError(
            f"{checkpoint_folder(self.run.checkpoints, state.step)} could not be saved: {problems[0]}; "
            "put that right and run the same command: it resumes from the newest checkpoint"
        )

    def _conclude(self) -> None:
        """Wait for the save under way, and for the pruning that follows it, and say how they went."""
        for _ in ("written", "pruned"):
            self.writer.wait_written()
            self.after_step()

    def _problem(self) -> str:
        """What went wrong with this worker's part of a save that has come to its end; "" if all is well."""
        if self._pending is None:
            return ""
        error = self.writer.take_error()
        if error is not None:
            return str(error) or type(error).__name__
        has_vanished = self.group.keeps_folder and not self._pending.folder.is_dir()
        return f"{self._pending.folder} has vanished" if has_vanished else ""

    def resolve_interval(self, state: TrainingState) -> None:
        """Choose what "auto" means, once, from what saving has cost here. Collective."""
        is_time = state.step - self.first_step == RESOLVE_STEP
        if self.recipe.checkpoint.every != "auto" or state.checkpoint_every or not is_time:
            return
        if not self.exchange.traits.is_in_step:
            self.exchange.settle()
        step_s = statistics.median(self._quiet_steps or self._saving_steps)
        # Steps that a save slowed down, waiting for the copy included; what `save` itself took comes on top.
        slowed_s = max(sum(self._saving_steps) - step_s * len(self._saving_steps), self.writer.waited_s)
        cost = SavingCost(
            save_s=max(self.group.gather_json((self._blocked_s + slowed_s) / max(self._num_saves, 1))),
            step_s=step_s,
            failure_s=self.recipe.checkpoint.failure_hours * 3600 / self.num_hosts,
            period=self.exchange.traits.period,
        )
        every = self.group.broadcast_json(cost.choose_interval())
        state.checkpoint_every = every
        if self.group.is_first:
            self.records.write("event", step=state.step, message=cost.explain(every))
        if not self.group.keeps_folder:
            return
        try:
            write_interval(self.run, self.recipe, every)
        except OSError as error:  # checkpoints hold the interval too, so a resumed run keeps it
            self.records.write("event", message=f"the interval could not be noted in the recipe: {error}")
