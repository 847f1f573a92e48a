"""A worker process: joins its group, trains the run in a folder, scores it, and leaves.

Started as `python -m echelon.train.worker RUN` by any launcher that sets RANK and WORLD_SIZE; it does not know
which. What it does is in the run folder: the recipe, the place of the prepared data, the checkpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch

from echelon.comm.group import FOR_EVER, Group, abandon, join_group
from echelon.comm.sockets import Sockets, can_list_sockets
from echelon.errors import (
    FINAL_STATUS,
    INTERRUPTED_STATUS,
    CheckpointError,
    EchelonError,
    LostGroupError,
    TrainingError,
    UserError,
)
from echelon.lease import fence
from echelon.monitor.heartbeat import Heart, open_heart
from echelon.monitor.records import RecordWriter
from echelon.monitor.regrouping import WorkerEnd, open_line
from echelon.recipe.length import length_in_steps
from echelon.recipe.loading import load_recipe
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.schema import Recipe
from echelon.resolve.exchange import choose_hosts, resolve_exchange
from echelon.resolve.run_recipe import require_one_recipe
from echelon.runfolder import RunFolder
from echelon.tasks import build_task
from echelon.tasks.task import Task
from echelon.train.checkpoint_policy import CheckpointPolicy
from echelon.train.checkpoint_writer import CheckpointWriter
from echelon.train.evaluation import is_patience_over, save_scores, score_summary, score_together
from echelon.train.exchange import Exchange, build_exchange
from echelon.train.exchange.measure import measure
from echelon.train.loop import Outcome, Skips, StopFlag, Training, train
from echelon.train.mirror import Mirror
from echelon.train.model_state import ModelState, build_model_state
from echelon.train.precision import warning_of
from echelon.train.prefetch import SlotPrefetch, gains_by_prefetch
from echelon.train.restore import Restored, Restorer, Survivor
from echelon.train.step_timing import measure_steps
from echelon.train.trackers import build_trackers
from echelon.train.weights import Weights, choose_weights, load_weights, onto_adapters
from echelon.train.worker_facts import compare_workers, describe_worker, open_meter, peak_flops, start_sampler

_GROUP_TIMEOUT_S = 300.0
"""How long a collective may take beyond `restart.hang_seconds`, by which the launcher has seen who hangs."""
_PR_SET_PDEATHSIG = 1


@dataclass
class Kept:
    """What a worker keeps if others of its group are lost."""

    line: WorkerEnd | None
    """To the launcher, if that forms new groups."""
    training: Training | None = None
    """What it can continue with; None as long as it could not."""

    def keep(self, training: Training) -> None:
        """Keep what this worker can continue with in another group, and tell the launcher."""
        if self.line is not None and can_continue(training):
            self.training = training
            self.line.say_able()


def main(arguments: Sequence[str]) -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m echelon.train.worker")
    parser.add_argument("run", type=Path)
    parser.add_argument("--benchmark", type=int, metavar="STEPS", help="measure steps and save nothing")
    parser.add_argument("--warm-up", type=int, metavar="STEPS", default=0, help="steps before that")
    options = parser.parse_args(arguments)
    run = RunFolder(options.run)
    _stop_with_launcher()
    # The launcher asks workers that hang where they are.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    stop = StopFlag() if options.benchmark else _catch_stop_signals()
    heart = open_heart()
    heart.beat()
    records = RecordWriter(run.worker_records(int(os.environ.get("RANK", "0"))))
    try:
        if options.benchmark:
            outcome = Outcome.FINISHED
            group = join_group(collective_timeout_s(run), heart)
            training = set_up(run, group, records)
            records.write("benchmark", **measure_steps(training, options.benchmark, options.warm_up))
            group.barrier()
        else:
            kept = Kept(open_line())
            while (ended := work_in_group(run, heart, records, stop, kept)) is None:
                wait_for_group(kept, heart)
                records.close()
                records = RecordWriter(run.worker_records(int(os.environ["RANK"])))
            outcome = ended
    except BaseException as error:
        message = str(error) if isinstance(error, EchelonError) else f"{type(error).__name__}: {error}"
        records.write("failure", message=message)
        with contextlib.suppress(OSError):  # the log may be on a full disk
            if isinstance(error, EchelonError):
                sys.stderr.write(f"error: {error}\n")
            else:
                traceback.print_exc()
        leave(records, FINAL_STATUS if isinstance(error, UserError | TrainingError) else 1)
    leave(records, INTERRUPTED_STATUS if outcome is Outcome.INTERRUPTED else 0)


def work_in_group(
    run: RunFolder, heart: Heart, records: RecordWriter, stop: StopFlag, kept: Kept
) -> Outcome | None:
    """Join the group that this worker is put into, and work in it; None if others of it are lost, and this worker can
    continue with what it has kept."""
    sockets = Sockets()
    if kept.line is not None:
        kept.line.on_abandon = sockets.shut_down
    try:
        group = join_group(collective_timeout_s(run), heart, sockets)
        outcome = work_or_stand_by(run, group, records, stop, kept)
        group.barrier()
    except LostGroupError as error:
        if kept.training is None:
            raise
        records.write(
            "event", message=f"{error}; this worker keeps its weights of step {kept.training.state.step}"
        )
        abandon(sockets)
        return None
    return outcome


def wait_for_group(kept: Kept, heart: Heart) -> None:
    """Wait until the launcher has a new group for this worker."""
    assert kept.line is not None, "nothing is kept without a launcher who forms new groups"
    with heart.waiting():
        if not kept.line.wait_for_group():
            raise TrainingError("the launcher is gone")


def collective_timeout_s(run: RunFolder) -> float:
    return longest_collective_s(load_recipe(run.recipe).restart.hang_seconds)


def longest_collective_s(hang_s: float) -> float:
    """How long a worker waits in a collective: a last resort, if `restart.hang_seconds` sets a limit at all."""
    return hang_s + _GROUP_TIMEOUT_S if hang_s else FOR_EVER.total_seconds()


def leave(records: RecordWriter, status: int) -> NoReturn:
    """End this process at once, everything being written.

    The usual clean-up would take the process group apart, which waits for workers that hang in a collective, and
    aborts if the store's host has left before.
    """
    try:
        records.close()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def work_or_stand_by(
    run: RunFolder, everybody: Group, records: RecordWriter, stop: StopFlag, kept: Kept
) -> Outcome:
    """Train if the recipe's exchange wants this host; otherwise wait until the others have ended. Collective."""
    device = choose_device()
    recipe = resolve_exchange(run, everybody, records, lambda recipe: measure(recipe, run, everybody, device))
    group = everybody.of_hosts(choose_hosts(run, everybody, recipe.exchange.hosts))
    with _numbered_anew(run, everybody, group, records) as own_records:
        if group is None:
            message = f"this host stands by: exchange.hosts = {recipe.exchange.hosts}"
            own_records.write("event", message=message)
            return Outcome(everybody.await_news())
        # Whoever stands by has no weights, so a group that some stand by for is not formed anew around them.
        outcome = work(run, group, own_records, stop, kept if group is everybody else Kept(None))
    if group.size < everybody.size and group.is_first:
        everybody.tell(outcome.value)
    return outcome


@contextlib.contextmanager
def _numbered_anew(
    run: RunFolder, everybody: Group, group: Group | None, records: RecordWriter
) -> Iterator[RecordWriter]:
    """The records of a worker whose number is another among those who train: readers look for them from 0 on, and find
    those who stand by after them. Collective."""
    have_part = everybody.gather_json(group is not None)
    number = sorted(range(everybody.size), key=lambda rank: not have_part[rank]).index(everybody.rank)
    if number == everybody.rank:
        yield records
        return
    with contextlib.closing(RecordWriter(run.worker_records(number))) as own_records:
        yield own_records


def work(
    run: RunFolder, group: Group, records: RecordWriter, stop: StopFlag, kept: Kept | None = None
) -> Outcome:
    """Train the run to its end and score it, or stop when told to. Collective."""
    started, kept = time.time(), kept or Kept(None)
    training = set_up(run, group, records, stop, kept)
    records.write(
        "start",
        step=training.state.step,
        steps=training.steps,
        workers=group.size,
        unit=training.task.unit,
        kernels=training.task.kernels,
        **describe_worker(training),
    )
    device = training.model.flat.weights.device
    for warning in (warning_of(training.recipe.train.precision, device), compare_workers(training)):
        if warning is not None and group.is_first:
            records.write("event", message=warning)
    sampler = start_sampler(records)
    training.meter.take()  # set-up is not part of the first step
    gc.freeze()  # what set-up made stays; the collector need not look at it again
    try:
        outcome = train(training)
    except LostGroupError:
        for tracker in training.trackers:
            tracker.close()
        if sampler is not None:
            sampler.stop()
        raise
    finally:
        training.prefetch.close()
    kept.training = None  # scoring may load other weights; what was trained is saved
    if outcome in (Outcome.FINISHED, Outcome.STOPPED_EARLY):
        outcome = outcome if score_test(training) else Outcome.INTERRUPTED
        training.meter.lap("evaluation")
    if sampler is not None:
        sampler.stop()
    finish_mirror(training)
    for tracker in training.trackers:
        tracker.close()
    records.write(
        "end",
        step=training.state.step,
        outcome=outcome.value,
        seconds=round(time.time() - started, 3),
        peak_flops=peak_flops(training),
        **training.meter.take(),
    )
    return outcome


def finish_mirror(training: Training) -> None:
    """Return when the first worker has uploaded everything, however long that takes. Collective."""
    if training.recipe.checkpoint.mirror is None:
        return
    if training.checkpoints.mirror is not None:
        training.checkpoints.mirror.finish(training.group.heart)
    training.group.await_first("mirroring")


def set_up(
    run: RunFolder,
    group: Group,
    records: RecordWriter,
    stop: StopFlag | None = None,
    kept: Kept | None = None,
) -> Training:
    """Build everything from the run folder, except for what is kept, and continue where other workers that have kept
    something are, or else at the newest checkpoint. Collective."""
    kept = kept or Kept(None)
    recipe, device = load_recipe(run.recipe), choose_device()
    require_one_recipe(recipe, group)
    group.heart.beat()
    task, model, writer = _keep_or_build(recipe, run, group, device, kept.training)
    survivor = None if kept.training is None else describe_survivor(kept.training)
    exchange = _attach_exchange(recipe, group, model, writer)
    mirror = _open_mirror(recipe, run, group, records, task)
    restorer = Restorer(recipe, run, group, records, model, exchange, mirror)
    restored = _restore(restorer, survivor, kept)
    state = restored.state
    checkpoints = CheckpointPolicy(
        run=run,
        group=group,
        recipe=recipe,
        records=records,
        model=model,
        exchange=exchange,
        writer=writer,
        mirror=mirror,
        first_step=state.step,
        num_hosts=int(os.environ.get("ECHELON_HOSTS", "1")),
        may_write=fence(run, int(os.environ.get("ECHELON_GENERATION", "0"))),
    )
    if restored.must_save:
        checkpoints.save(state)
    # The user may have given the run more patience since it stopped.
    state.stopped_early &= is_patience_over(state, recipe.early_stop)
    steps = length_in_steps(recipe.train, task.steps_per_epoch)
    training = Training(
        recipe=recipe,
        run=run,
        group=group,
        records=records,
        task=task,
        prefetch=SlotPrefetch(task, is_ahead=gains_by_prefetch(device)),
        model=model,
        exchange=exchange,
        restorer=restorer,
        checkpoints=checkpoints,
        state=state,
        steps=steps,
        rate=rate_by_step(recipe, steps),
        trackers=build_trackers(recipe, run, state.step + 1, records, group.heart) if group.is_first else [],
        meter=open_meter(device),
        stop=stop or StopFlag(),
        skips=Skips(restored.num_skipped),
    )
    kept.keep(training)
    return training


def _keep_or_build(
    recipe: Recipe, run: RunFolder, group: Group, device: torch.device, before: Training | None
) -> tuple[Task, ModelState, CheckpointWriter]:
    """What does not depend on the group: that of `before`, if there is one."""
    if before is not None:
        before.checkpoints.writer.wait_written()
        return before.task, before.model, before.checkpoints.writer
    task = build_task(recipe, run, device)
    group.heart.beat()
    return task, build_model_state(recipe, task, device), CheckpointWriter()


def _attach_exchange(recipe: Recipe, group: Group, model: ModelState, writer: CheckpointWriter) -> Exchange:
    """The recipe's exchange, which works on the model's flat parameters from now on. Collective."""
    exchange = build_exchange(recipe, group)
    model.flat.release()
    exchange.attach(model.flat, model.optimiser, writer.wait_copied)
    group.heart.beat()
    return exchange


def _restore(restorer: Restorer, survivor: Survivor | None, kept: Kept) -> Restored:
    """Go to where those stand who have kept their weights, or else to the newest checkpoint. Collective."""
    healing = restorer.find_survivors(survivor)
    if healing is None or not healing.is_here:
        kept.training = None  # weights change now; if others are lost meanwhile, they are worth nothing
    return restorer.start() if healing is None else restorer.heal(healing, survivor)


def can_continue(training: Training) -> bool:
    """Whether this worker could continue in another group if workers of this one were lost."""
    return (
        training.group.size > 1
        and training.exchange.traits.is_replicated
        and training.model.flat.weights.device.type == "cpu"  # NCCL's collectives are not abandoned
        and training.recipe.checkpoint.mirror is None  # which worker uploads may change
        and can_list_sockets()
    )


def describe_survivor(before: Training) -> Survivor:
    """Where training stands at this worker, after others were lost."""
    return Survivor(before.state, before.exchange.state().shared, before.skips.in_a_row)


def _open_mirror(
    recipe: Recipe, run: RunFolder, group: Group, records: RecordWriter, task: Task
) -> Mirror | None:
    """Where this worker uploads checkpoints; only the first one does."""
    address = recipe.checkpoint.mirror
    return Mirror(address, run, records, task.model_files(run)) if address and group.is_first else None


def score_test(training: Training) -> bool:
    """Score the test set with the weights that the recipe names, and write scores and outputs down; False if told to
    stop before that is done. Collective."""
    run, group = training.run, training.group
    if not training.task.has_split("test"):
        return True
    weights, scoring = load_final_weights(training), training.task.scoring("test", final=True)
    scores = score_together(
        scoring, training.model.module, group, training.model.precision, lambda: training.stop.is_set
    )
    if scores is None:
        training.records.write("event", message="the scoring of the test set was broken off to stop")
        return False
    result = score_summary(scores, weights, "test")
    if group.keeps_folder:
        save_scores(run, scores, result)
    if group.is_first:
        training.records.write("score", **result)
    group.barrier()
    return True


def load_final_weights(training: Training) -> Weights:
    """Put the weights that the recipe scores at the end into the model of every worker; the last weights if no
    disk has the others any more, so that the run can end. Collective."""
    wanted = training.recipe.evaluate.final
    weights, problem = _find_weights(training, wanted)
    if weights is None and wanted != "last":
        message = f"{problem}; the last weights are scored in place of the {wanted}"
        training.records.write("event", message=message)
        weights, problem = _find_weights(training, "last")
    if weights is None:
        raise CheckpointError(problem)
    return weights


def _find_weights(training: Training, which: str) -> tuple[Weights | None, str]:
    """Load the weights `which`, from the worker whose disk has most of them, everywhere; or why nobody can.
    Collective."""
    group, weights, problem = training.group, None, ""
    try:
        weights = choose_weights(training.run, which)
    except CheckpointError as error:
        problem = str(error)
    answers = group.gather_json([weights.num_averaged if weights else 0, problem])
    counts = [count for count, _ in answers]
    holder = counts.index(max(counts))
    if not counts[holder]:
        return None, answers[0][1]
    if weights is not None:
        load_weights(training.model.module, onto_adapters(training.model.module, weights))
    for tensor in training.model.module.state_dict().values():
        group.broadcast(tensor, holder)
    step, label = group.broadcast_json([weights.step, weights.label] if weights else None, holder)
    return Weights({}, step, label), ""


def choose_device() -> torch.device:
    """This worker's GPU, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _catch_stop_signals() -> StopFlag:
    """SIGTERM and Ctrl-C ask the loop to save and leave after the step under way."""
    stop = StopFlag()

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.is_set = True

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)
    return stop


def _stop_with_launcher() -> None:
    """Have the kernel send SIGTERM when the launcher dies, however it dies: save and leave rather than linger."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        launcher = os.environ.get("ECHELON_LAUNCHER")
        if launcher is not None and os.getppid() != int(launcher):
            sys.exit("the launcher died while this worker was starting")


if __name__ == "__main__":
    main(sys.argv[1:])
