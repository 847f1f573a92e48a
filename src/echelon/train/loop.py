"""The training loop. It reads top to bottom: what a step is, and what happens between two steps."""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from echelon.comm.group import Group
from echelon.files.checkpoint_layout import TrainingState
from echelon.monitor.meter import StepMeter
from echelon.monitor.records import RecordWriter
from echelon.recipe.schema import Recipe
from echelon.runfolder import RunFolder
from echelon.tasks.task import Scores, Slot, Task
from echelon.train.averaging import WeightAverage
from echelon.train.evaluate import note_best, score_together, should_stop_early
from echelon.train.exchange import Exchange
from echelon.train.flat import FlatParameters
from echelon.train.keeper import Keeper
from echelon.train.optimiser import FlatOptimiser
from echelon.train.precision import Precision
from echelon.train.reading import SlotReader
from echelon.train.resume import roll_back
from echelon.train.slots import slot_seed
from echelon.train.statistics import SlotStatistics
from echelon.train.trackers import Tracker

MAX_SKIPPED_IN_A_ROW = 50
"""More than the halvings from the first loss scale of float16 to the smallest."""


class Outcome(enum.Enum):
    """How a call of `train` ended."""

    FINISHED = "finished"
    STOPPED_EARLY = "stopped early"
    INTERRUPTED = "interrupted"
    PAUSED = "paused"
    """At the step where the recipe has it stop; to be gone on with."""


@dataclass
class StopRequest:
    """Set by a signal handler; the loop looks at it once a step, and before every batch that it scores."""

    is_set: bool = False


@dataclass
class Training:
    """Everything the loop works on. Every worker writes records; only worker 0 has trackers."""

    recipe: Recipe
    run: RunFolder
    group: Group
    task: Task
    reader: SlotReader
    model: nn.Module
    flat: FlatParameters
    statistics: SlotStatistics
    optimiser: FlatOptimiser
    average: WeightAverage
    exchange: Exchange
    precision: Precision
    state: TrainingState
    steps: int
    rate: Callable[[int], float]
    records: RecordWriter
    keeper: Keeper
    trackers: list[Tracker]
    meter: StepMeter = field(default_factory=StepMeter)
    stop: StopRequest = field(default_factory=StopRequest)
    gradient_norm: float = math.nan
    """Before clipping, at the last update; not a number on workers that leave updating to others."""
    skipped_in_a_row: int = 0
    has_rolled_back: bool = False

    @property
    def last_step(self) -> int:
        """Where the loop ends, this time."""
        return min(self.steps, self.recipe.train.stop_at or self.steps)


@dataclass(frozen=True)
class StepResult:
    """One step, as every worker saw it."""

    is_own: bool
    """Whether this worker had a part in it; some exchanges give whole steps to others."""
    loss: float
    """Mean over the step's targets, without label smoothing."""
    gradient_norm: float
    learning_rate: float
    targets: int
    seconds: float
    must_stop: bool
    """Some worker was told to stop: all of them leave after this step."""
    must_save: bool
    """Some worker's last save failed, and it wants another."""
    is_sound: bool
    """No worker is skipping steps."""
    must_roll_back: bool
    """Some worker has skipped too many steps in a row."""


def train(training: Training) -> Outcome:
    """Train from where `training.state` stands to the end, or until told to stop. Collective."""
    training.model.train()
    if training.state.awaits_scoring and not resume_scoring(training):
        return Outcome.INTERRUPTED
    while training.state.step < training.last_step and not training.state.stopped_early:
        result = take_step(training, training.state.step + 1)
        if result.must_roll_back:
            roll_back(
                training, f"{MAX_SKIPPED_IN_A_ROW} steps in a row had a loss or gradient that is not finite"
            )
            continue
        training.state.step += 1
        if result.is_own:
            log_step(training, result)
        is_leaving = between_steps(training, result)
        if is_leaving:
            training.keeper.finish(training.state)
            training.meter.lap("checkpoint")
            must_stop = result.must_stop and training.state.step < training.steps
            if must_stop or training.state.awaits_scoring:
                return Outcome.INTERRUPTED
    if training.state.stopped_early:
        return Outcome.STOPPED_EARLY
    return Outcome.FINISHED if training.state.step >= training.steps else Outcome.PAUSED


def between_steps(training: Training, result: StepResult) -> bool:
    """Score and save if it is time to; whether the loop ends here. Collective."""
    state, keeper = training.state, training.keeper
    keeper.after_step(result.seconds if result.is_own else None)
    is_best = is_scored(training, state.step) and score(training)
    keeper.resolve_interval(state)
    is_over = state.step >= training.last_step or state.stopped_early
    is_leaving = is_over or result.must_stop or state.awaits_scoring
    # Scoring takes memory that training does not: whatever happens then, there is a checkpoint to resume from.
    is_first = not keeper.has_checkpoint and is_scored(training, state.step + training.exchange.period)
    # Not while steps are being skipped, so that `roll_back` finds a checkpoint from before the first of them.
    is_due = keeper.is_due(state, may_save=result.is_sound)
    is_due |= (result.must_save or is_first) and result.is_sound
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
    training.keeper.finish(training.state)
    training.meter.lap("checkpoint")
    return True


def save(training: Training) -> None:
    """Begin a checkpoint of this step. Collective."""
    training.exchange.settle()
    training.state.precision = training.precision.state()
    training.keeper.save(training.state)
    training.meter.lap("checkpoint")


def take_step(training: Training, step: int) -> StepResult:
    """One update: this worker's slots forward and backward, the exchange, the optimiser. Collective."""
    started = time.perf_counter()
    flat, meter, exchange = training.flat, training.meter, training.exchange
    meter.lap("other")
    slots = training.task.slots(step)
    meter.lap("data")
    rate, loss = training.rate(step), None
    training.group.heart.beat(step)
    for turn in exchange.turns(step, len(slots)):
        meter.lap("communication")
        flat.zero()
        cast_votes(training)
        targets = sum(slots[number].targets for number in turn.together)
        training.reader.mine = turn.mine
        for number in turn.mine:
            with exchange.slot(last=number == turn.mine[-1]):
                compute_slot(training, step, number, slots[number], targets)
        exchange.update(partial(apply_update, training, rate, turn.together))
        meter.lap("communication")
        loss = flat.extras[flat.LOSS].item() / targets
    meter.lap("communication")
    step_targets = sum(slot.targets for slot in slots)
    return as_seen_here(training, loss, rate, step_targets, time.perf_counter() - started)


def as_seen_here(
    training: Training, loss: float | None, rate: float, targets: int, seconds: float
) -> StepResult:
    """The step that has just been taken; without a loss where this worker had no part in it."""
    flat = training.flat
    return StepResult(
        is_own=loss is not None,
        loss=math.nan if loss is None else loss,
        gradient_norm=training.gradient_norm,
        learning_rate=rate,
        targets=targets,
        seconds=seconds,
        must_stop=has_votes(training, flat.STOP_VOTES),
        must_save=has_votes(training, flat.SAVE_VOTES),
        is_sound=not is_agreed(training, flat.SKIP_VOTES, training.skipped_in_a_row > 0),
        must_roll_back=is_agreed(
            training, flat.BACK_VOTES, training.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW
        ),
    )


def cast_votes(training: Training) -> None:
    """Put what this worker wants beside its gradients; the exchange adds it up with the others'."""
    flat = training.flat
    flat.extras[flat.STOP_VOTES] = float(training.stop.is_set)
    flat.extras[flat.SAVE_VOTES] = float(training.keeper.wants_retry)
    flat.extras[flat.SKIP_VOTES] = float(training.skipped_in_a_row > 0)
    flat.extras[flat.BACK_VOTES] = float(training.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW)


def has_votes(training: Training, kind: int) -> bool:
    return training.flat.extras[kind].item() > 0


def is_agreed(training: Training, kind: int, is_seen_here: bool) -> bool:
    """Workers that share every update see alike what became of it; the others go by each other's votes."""
    exchange = training.exchange
    sees_everything = exchange.is_in_step and not exchange.has_own_optimisers
    return is_seen_here if sees_everything else has_votes(training, kind)


def compute_slot(training: Training, step: int, number: int, slot: Slot, targets: int) -> None:
    """Forward and backward of one slot: its part of the gradient of the mean over `targets`."""
    flat, meter = training.flat, training.meter
    training.group.heart.beat()
    batch = training.reader.read(step, number, slot)
    meter.lap("data")
    torch.manual_seed(slot_seed(training.recipe.seed, step, number))
    with training.precision.autocast():
        loss = training.task.loss(training.model, batch)
    training.statistics.note(number)
    meter.lap("forward")
    flat.extras[flat.LOSS] += loss.nll
    (loss.smoothed * (training.precision.scale / targets)).backward()  # type: ignore[no-untyped-call]
    meter.lap("backward")


def apply_update(training: Training, rate: float, slots: range) -> None:
    """Update the weights, once no save copies them any more."""
    training.meter.lap("communication")
    training.keeper.before_update()
    training.meter.lap("checkpoint")
    training.gradient_norm = update_weights(training, rate, slots)
    training.meter.lap("optimiser")


def update_weights(training: Training, rate: float, slots: range) -> float:
    """Unscale, clip, update; a loss or gradient that is not finite changes nothing. Returns the norm before clipping.

    All workers that share this update hold the same reduced gradient, and decide alike.
    """
    gradients, scale = training.flat.gradients, training.precision.scale
    norm = training.exchange.gradient_norm() / scale
    if not math.isfinite(norm + float(training.flat.extras[training.flat.LOSS])):
        skip_step(training)
        return norm
    clip = training.recipe.train.clip_norm
    factor = (clip / norm if clip is not None and norm > clip else 1.0) / scale
    if factor != 1.0:
        gradients.mul_(factor)
    training.optimiser.step(rate)
    training.statistics.apply(training.state.step + 1, slots)
    training.average.update(training.state.step + 1)
    training.skipped_in_a_row = 0
    if training.precision.scaling:
        training.precision.scaling.succeeded()
    return norm


def skip_step(training: Training) -> None:
    """Count a step whose loss or gradient is not finite, and back the loss scale off."""
    state, scaling = training.state, training.precision.scaling
    state.skipped_steps += 1
    training.skipped_in_a_row += 1
    message = f"step {state.step + 1} skipped: its loss or gradient is not finite"
    if scaling:
        scaling.overflowed()
        message += f"; the loss scale is now {scaling.scale:g}"
    training.records.write("event", step=state.step + 1, message=message)


def log_step(training: Training, result: StepResult) -> None:
    """Write the step's record, and every so often its points in the trackers."""
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
    training.keeper.before_update()
    with training.average.in_place():
        scores = score_together(
            training.task.scoring("valid", final=False),
            training.model,
            training.group,
            training.precision,
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
