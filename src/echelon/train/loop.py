"""The training loop. It reads top to bottom: what a step is, and what happens between two steps."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from echelon.comm.group import Group
from echelon.errors import CheckpointError, LostGroupError, TrainingError
from echelon.files.checkpoint_layout import TrainingState
from echelon.monitor.meter import StepMeter
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder
from echelon.tasks.task import Scores, Slot, Task
from echelon.train.checkpoint_policy import CheckpointPolicy
from echelon.train.evaluation import note_best, score_together, should_stop_early
from echelon.train.exchange import Exchange
from echelon.train.gradient_norm import block_norms, total_norm
from echelon.train.model_state import ModelState
from echelon.train.prefetch import SlotPrefetch
from echelon.train.restore import Restorer
from echelon.train.slots import Update, slot_seed
from echelon.train.trackers import Tracker
from echelon.train.votes import Votes, count_votes, with_own_view

MAX_SKIPPED_IN_A_ROW = 50
"""More than the halvings from the first loss scale of float16 to the smallest."""


class Outcome(enum.Enum):
    """How a call of `train` ended."""

    FINISHED = "finished"
    STOPPED_EARLY = "stopped early"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    """At the step where the recipe has it stop; to be resumed."""


@dataclass
class StopFlag:
    """Set by a signal handler; the loop looks at it once a step, and before every batch that it scores."""

    is_set: bool = False


@dataclass
class Skips:
    """Updates that were skipped because their loss or gradient was not finite."""

    in_a_row: int = 0
    has_rolled_back: bool = False


@dataclass(frozen=True)
class Training:
    """Everything the loop works on, complete. Every worker writes records; only the first has trackers."""

    recipe: Recipe
    run: RunFolder
    group: Group
    records: RecordWriter
    task: Task
    prefetch: SlotPrefetch
    model: ModelState
    exchange: Exchange
    restorer: Restorer
    checkpoints: CheckpointPolicy
    state: TrainingState
    """Where training stands."""
    steps: int
    rate: Callable[[int], float]
    trackers: Sequence[Tracker]
    meter: StepMeter
    stop: StopFlag
    skips: Skips = field(default_factory=Skips)

    @property
    def last_step(self) -> int:
        """Where the loop ends, this time."""
        return min(self.steps, self.recipe.train.stop_at or self.steps)


@dataclass(frozen=True)
class StepResult:
    """One step, as every worker saw it."""

    loss: float | None
    """Mean over the step's targets, without label smoothing; None if this worker had no part in the step, as some
    exchanges give whole steps to others."""
    gradient_norm: float
    """Before clipping; not a number on workers that leave updating to others."""
    learning_rate: float
    targets: int
    seconds: float
    votes: Votes

    @property
    def is_own(self) -> bool:
        return self.loss is not None


def train(training: Training) -> Outcome:
    """Train from where `training.state` stands to the end, or until told to stop. Collective."""
    training.model.module.train()
    if training.state.awaits_scoring and not resume_scoring(training):
        return Outcome.INTERRUPTED
    while training.state.step < training.last_step and not training.state.stopped_early:
        result = take_step(training, training.state.step + 1)
        if result.votes.roll_back:
            roll_back(training)
            continue
        training.state.step += 1
        log_step(training, result)
        is_leaving = between_steps(training, result)
        if is_leaving:
            training.checkpoints.finish(training.state)
            training.meter.lap("checkpoint")
            must_stop = result.votes.stop and training.state.step < training.steps
            if must_stop or training.state.awaits_scoring:
                return Outcome.INTERRUPTED
    if training.state.stopped_early:
        return Outcome.STOPPED_EARLY
    return Outcome.FINISHED if training.state.step >= training.steps else Outcome.PAUSED


def between_steps(training: Training, result: StepResult) -> bool:
    """Score and save if it is time to; whether the loop ends here. Collective."""
    state, checkpoints = training.state, training.checkpoints
    checkpoints.after_step(result.seconds if result.is_own else None)
    is_best = is_scored(training, state.step) and score(training)
    checkpoints.resolve_interval(state)
    is_over = state.step >= training.last_step or state.stopped_early
    is_leaving = is_over or result.votes.stop or state.awaits_scoring
    # Scoring takes memory that training does not: whatever happens then, there is a checkpoint to resume from.
    is_first = not checkpoints.has_checkpoint and is_scored(
        training, state.step + training.exchange.traits.period
    )
    # Not while steps are being skipped, so that `roll_back` finds a checkpoint from before the first of them.
    is_due = checkpoints.is_due(state, may_save=not result.votes.is_skipping)
    is_due |= (result.votes.save or is_first) and not result.votes.is_skipping
    if is_best or is_leaving or is_due:
        save(training)
    return is_leaving


def is_scored(training: Training, step: int) -> bool:
    """Whether the validation set is scored after a step."""
    is_time = step == training.steps or step % training.recipe.evaluate.every == 0
    return is_time and training.task.has_split("valid")


def score(training: Training) -> bool:
    """Score the validation set; whether this is the best score so far. Collective.

    If a worker is told to stop meanwhile, the scoring is broken off, and the state says that it is still to come.
    """
    state, recipe = training.state, training.recipe
    state.awaits_scoring = True  # also if a worker is lost meanwhile
    scores = validate(training)
    state.awaits_scoring = scores is None
    if scores is None:
        return False
    must_stop = should_stop_early(state, recipe.early_stop, scores)
    state.stopped_early = must_stop and state.step < training.steps
    return note_best(state, recipe.checkpoint.best, scores)


def resume_scoring(training: Training) -> bool:
    """Score the step that a stopped run had not scored, and save it again; False if told to stop again. Collective."""
    score(training)
    if training.state.awaits_scoring:
        return False
    save(training)
    training.checkpoints.finish(training.state)
    training.meter.lap("checkpoint")
    return True


def save(training: Training) -> None:
    """Begin a checkpoint of this step. Collective."""
    training.exchange.settle()
    training.state.precision = training.model.precision.state()
    training.checkpoints.save(training.state)
    training.meter.lap("checkpoint")


def take_step(training: Training, step: int) -> StepResult:
    """Take a step: for each update backward -> reduce -> unscale -> clip -> update. Collective."""
    started = time.perf_counter()
    meter, exchange = training.meter, training.exchange
    meter.lap("other")
    slots = training.task.slots(step)
    meter.lap("data")
    rate, loss, norm = training.rate(step), None, math.nan
    training.group.heart.beat(step)
    for update in exchange.updates(step, len(slots)):
        meter.lap("communication")
        targets = sum(slots[number].targets for number in update.slots)
        backward(training, step, slots, update, targets)
        while (reduced := exchange.reduce()).must_repeat:
            backward(training, step, slots, update, targets)
        meter.lap("communication")
        is_updated = False
        if update.is_applied_here:
            training.checkpoints.wait_copied()
            meter.lap("checkpoint")
            norm = unscale(training, reduced.whole_norm)
            is_updated = math.isfinite(norm + training.model.flat.loss)
            if is_updated:
                clip(training, norm)
                update_weights(training, rate, update)
            else:
                skip_update(training)
            meter.lap("optimiser")
        exchange.after_update()
        meter.lap("communication")
        if is_updated:
            training.model.average.update(step)  # all of the new weights are here by now
            meter.lap("optimiser")
        loss = training.model.flat.loss / targets
    meter.lap("communication")
    targets = sum(slot.targets for slot in slots)
    seconds = time.perf_counter() - started
    return StepResult(loss, norm, rate, targets, seconds, agreed_votes(training))


def backward(training: Training, step: int, slots: Sequence[Slot], update: Update, targets: int) -> None:
    """Forward and backward of this worker's slots: its part of the gradient of the mean over `targets`."""
    training.model.flat.zero()
    own_votes(training).cast(training.model.flat.votes)
    for number in update.mine:
        training.group.heart.beat()
        with training.exchange.slot(last=number == update.mine[-1]):
            batch = training.prefetch.read(step, number, slots[number], update.mine)
            training.meter.lap("data")
            torch.manual_seed(slot_seed(training.recipe.seed, step, number))
            compute_slot(training, number, batch, targets)


def compute_slot(training: Training, number: int, batch: Any, targets: int) -> None:
    """Forward and backward of one slot."""
    with training.model.precision.autocast():
        loss = training.task.loss(training.model.module, batch)
    training.model.statistics.note(number)
    training.meter.lap("forward")
    training.model.flat.losses[number] = loss.nll
    (loss.smoothed * (training.model.precision.scale / targets)).backward()  # type: ignore[no-untyped-call]
    training.meter.lap("backward")


def unscale(training: Training, whole_norm: float | None) -> float:
    """Divide the gradient by the loss scale. Returns its norm, from `whole_norm`, before the division, if this worker
    has only a part of the gradient."""
    gradients, spans = training.model.flat.gradients, training.model.optimiser.spans
    scale = training.model.precision.scale
    if whole_norm is None:
        whole_norm = total_norm(block_norms(gradients, spans))
    if scale != 1.0:
        for span in spans:
            gradients[span].div_(scale)
    return whole_norm / scale


def clip(training: Training, norm: float) -> None:
    """Make the gradient's norm at most `train.clip_norm`."""
    longest = training.recipe.train.clip_norm
    if longest is not None and norm > longest:
        for span in training.model.optimiser.spans:
            training.model.flat.gradients[span].mul_(longest / norm)


def update_weights(training: Training, rate: float, update: Update) -> None:
    """Let the optimiser update the weights, and the running statistics follow them."""
    step = training.state.step + 1
    training.model.optimiser.step(rate)
    training.model.statistics.apply(step, update.slots)
    training.skips.in_a_row = 0
    if training.model.precision.scaling:
        training.model.precision.scaling.succeeded()


def skip_update(training: Training) -> None:
    """Count an update whose loss or gradient is not finite, and back the loss scale off. All workers that share the
    update have the same gradient, and decide alike."""
    state, scaling = training.state, training.model.precision.scaling
    state.skipped_steps += 1
    training.skips.in_a_row += 1
    message = f"step {state.step + 1} skipped: its loss or gradient is not finite"
    if scaling:
        scaling.overflowed()
        message += f"; the loss scale is now {scaling.scale:g}"
    training.records.write("event", step=state.step + 1, message=message)


def roll_back(training: Training) -> None:
    """Go back to the newest good checkpoint; TrainingError if there is none, or the second time. Collective."""
    reason = f"{MAX_SKIPPED_IN_A_ROW} steps in a row had a loss or gradient that is not finite"
    training.checkpoints.writer.wait_written()
    skips = training.skips
    try:
        restored = None if skips.has_rolled_back else training.restorer.load_newest()
    except LostGroupError as error:  # the weights may be of either step
        raise CheckpointError(f"going back to a checkpoint failed: {error}") from error
    if restored is None:
        again = " again" if skips.has_rolled_back else ""
        raise TrainingError(
            f"{reason}{again}; lower the learning rate, set train.clip_norm, or use bf16 or float32 in place of fp16"
        )
    training.state.take_over(restored.state)
    if restored.must_save:
        training.checkpoints.save(training.state)
    skips.in_a_row, skips.has_rolled_back = 0, True
    training.records.write("event", message=f"{reason}; going back to step {training.state.step}")


def own_votes(training: Training) -> Votes:
    """What this worker wants, from what it knows by now."""
    return Votes(
        stop=training.stop.is_set,
        save=training.checkpoints.wants_retry,
        is_skipping=training.skips.in_a_row > 0,
        roll_back=training.skips.in_a_row >= MAX_SKIPPED_IN_A_ROW,
    )


def agreed_votes(training: Training) -> Votes:
    """What the workers have agreed on in this step, the same on all of them."""
    counted = count_votes(training.model.flat.votes)
    return with_own_view(counted, own_votes(training)) if training.exchange.traits.shares_updates else counted


def log_step(training: Training, result: StepResult) -> None:
    """Write the record of a step that this worker had a part in, and every so often its points in the trackers."""
    if result.loss is None:
        return
    step, measured = training.state.step, training.meter.take()
    facts = {
        "loss": round(result.loss, 6),
        "gradient_norm": round(result.gradient_norm, 6),
        "learning_rate": result.learning_rate,
        "targets": result.targets,
        "seconds": round(result.seconds, 6),
    }
    training.records.write("step", step=step, **(facts | measured | training.exchange.facts()))
    if step % training.recipe.train.log_every == 0 or step == training.steps:
        values = {
            "train/loss": result.loss,
            "train/learning_rate": result.learning_rate,
            "train/gradient_norm": result.gradient_norm,
            f"train/{training.task.unit}_per_second": result.targets / result.seconds,
            "train/step_seconds": result.seconds,
            **{f"time/{phase}": seconds for phase, seconds in measured["phases"].items()},
        }
        for tracker in training.trackers:
            tracker.scalars(values, step, time.time())


def validate(training: Training) -> Scores | None:
    """Score the validation set with all workers and write the result down; None if one is told to stop. Collective."""
    started, step = time.perf_counter(), training.state.step
    training.meter.lap("other")
    training.exchange.settle()
    training.checkpoints.wait_copied()
    with training.model.average.in_place():
        scores = score_together(
            training.task.scoring("valid", final=False),
            training.model.module,
            training.group,
            training.model.precision,
            lambda: training.stop.is_set,
        )
    training.meter.lap("evaluation")
    if scores is None:
        training.records.write("event", message=f"the scoring of step {step} was broken off to stop")
        return None
    seconds = round(time.perf_counter() - started, 3)
    training.records.write("valid", step=step, seconds=seconds, signature=scores.signature, **scores.metrics)
    for sample in scores.samples:
        training.records.write("sample", step=step, **sample)
    for tracker in training.trackers:
        values = {f"valid/{name}": value for name, value in scores.metrics.items()}
        tracker.scalars(values, step, time.time())
        for number, sample in enumerate(scores.samples):
            text = "\n\n".join(f"**{name}** {value}" for name, value in sample.items())
            tracker.text(f"samples/{number}", text, step)
    training.meter.lap("evaluation")
    return scores
