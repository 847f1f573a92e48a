"""The loop in this process: what happens to numbers and disks that fail."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console
from tests.conftest import filled
from tests.waiting import wait_until
from torch import Tensor

from echelon.comm.group import Group
from echelon.commands.prepare import prepare_data
from echelon.commands.run_setup import write_run
from echelon.errors import CheckpointError, TrainingError
from echelon.files.checkpoint_layout import Best, is_complete
from echelon.models.loss import SummedLoss
from echelon.monitor.records import RecordWriter, read_records
from echelon.recipe.loading import load_recipe
from echelon.runfolder import RunFolder
from echelon.store import list_folders, put_folder
from echelon.tasks.task import Scores, Slot
from echelon.train import checkpoint_policy, checkpoint_writer, loop, mirror
from echelon.train.checkpoint import choose_checkpoint, list_checkpoints
from echelon.train.checkpoint_policy import RESOLVE_STEP
from echelon.train.loop import Outcome, Training, train
from echelon.train.worker import set_up

SetUp = Callable[..., Training]


@pytest.fixture
def set_up_toy(toy_recipe: Path, tmp_path: Path) -> Iterator[SetUp]:
    """A training of the toy recipe, ready to go, in a run folder of the given name."""
    writers: list[RecordWriter] = []

    def build(name: str, *settings: str) -> Training:
        recipe = load_recipe(toy_recipe, ["checkpoint.every=10", *settings])
        run = RunFolder(tmp_path / name)
        run.create()
        write_run(run, recipe, prepare_data(recipe, toy_recipe.parent, Console(quiet=True)))
        writers.append(RecordWriter(run.worker_records(0)))
        return set_up(run, Group(0, 1), writers[-1])

    yield build
    for writer in writers:
        writer.close()


def events(training: Training) -> list[str]:
    training.records.flush()
    found = read_records(training.run.worker_records(0))
    return [record["message"] for record in found if record["kind"] == "event"]


def spoil(training: Training, monkeypatch: pytest.MonkeyPatch, calls: range) -> None:
    """Make the loss not finite at some of its calls; the toy recipe has five slots a step. The first step is computed
    twice, which is not counted."""
    loss, count = training.task.loss, -5

    def spoilt(model: torch.nn.Module, batch: object) -> SummedLoss:
        nonlocal count
        count += 1
        result = loss(model, batch)
        return SummedLoss(result.smoothed * torch.nan, result.nll) if count - 1 in calls else result

    monkeypatch.setattr(training.task, "loss", spoilt)


def at_step(
    training: Training, monkeypatch: pytest.MonkeyPatch, step: int, action: Callable[[], object]
) -> None:
    """Have something happen in the middle of a step."""
    loss, has_happened = training.task.loss, False

    def watched(model: torch.nn.Module, batch: object) -> SummedLoss:
        nonlocal has_happened
        if training.state.step + 1 == step and not has_happened:
            has_happened = True
            action()
        return loss(model, batch)

    monkeypatch.setattr(training.task, "loss", watched)


def test_a_run_goes_on_from_everything_that_it_had_come_to(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best score, patience, skipped steps and loss scale, beside weights, optimiser, schedule and data."""
    scores = {4: 5.0, 8: 9.0, 12: 3.0, 16: 7.0, 20: 6.0, 24: 1.0}
    monkeypatch.setattr(loop, "validate", lambda t: Scores({"bleu": scores[t.state.step]}, "made up"))
    settings = (
        *("train.steps=24", "train.precision=fp16", "evaluate.every=4", "checkpoint.every=100"),
        *("checkpoint.best=bleu", 'early_stop=[{metric="bleu", patience=9}]'),
    )
    whole, part = set_up_toy("whole", *settings), set_up_toy("part", *settings)
    for training in (whole, part):
        spoil(training, monkeypatch, range(12, 13))
    assert train(whole) is Outcome.FINISHED

    def ask_to_stop() -> None:
        part.stop.is_set = True

    at_step(part, monkeypatch, 13, ask_to_stop)
    assert train(part) is Outcome.INTERRUPTED
    again = set_up_toy("part", *settings)
    assert again.state.step == 14, "the votes of step 13 had been cast"
    assert train(again) is Outcome.FINISHED
    assert again.state == whole.state
    assert again.state.best == Best(8, "bleu", 9.0)
    assert again.state.waits == {"bleu": {"best": 9.0, "scorings": 4}}
    assert again.state.skipped_steps == 1
    assert again.state.precision["good_steps"] == 21
    assert torch.equal(again.model.flat.weights, whole.model.flat.weights)


@pytest.mark.parametrize("step", [4, 8])
def test_a_run_that_is_stopped_while_it_scores_leaves_at_once_and_scores_later(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """In the middle and at the last step: the result is that of a run that was never stopped."""
    settings = ("train.steps=8", "evaluate.every=4", "checkpoint.every=100", "checkpoint.best=loss")
    whole, part = set_up_toy("whole", *settings), set_up_toy("part", *settings)
    assert train(whole) is Outcome.FINISHED
    batches = 0
    nothing = part.group.heart.beat

    def ask_to_stop(*arguments: int) -> None:
        nonlocal batches
        if not part.model.module.training and part.state.step == step:
            batches += 1
            part.stop.is_set = True
        nothing(*arguments)

    monkeypatch.setattr(part.group.heart, "beat", ask_to_stop)
    assert train(part) is Outcome.INTERRUPTED
    assert (part.state.step, part.state.awaits_scoring, batches) == (step, True, 1)
    assert events(part)[-1] == f"the scoring of step {step} was broken off to stop"
    again = set_up_toy("part", *settings)
    assert again.state.awaits_scoring
    assert train(again) is Outcome.FINISHED
    assert again.state == whole.state
    assert torch.equal(again.model.flat.weights, whole.model.flat.weights)
    saved = choose_checkpoint(again.run.checkpoints, "last")
    assert saved.load_state() == whole.state
    assert choose_checkpoint(again.run.checkpoints, "best").step == whole.state.best.step  # type: ignore[union-attr]


def test_a_checkpoint_is_there_before_the_first_scoring(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scoring may fail, for want of memory for example."""

    def fail(_: Training) -> Scores:
        raise MemoryError

    settings = ("train.steps=8", "evaluate.every=4", "checkpoint.every=100")
    training = set_up_toy("run", *settings)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", fail)
        with pytest.raises(MemoryError):
            train(training)
    training.checkpoints.writer.wait_written()
    again = set_up_toy("run", *settings)
    assert again.state.step == 3
    assert train(again) is Outcome.FINISHED


def test_the_update_waits_until_the_snapshot_is_taken(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread comes to copy only long after the update wants to change the weights."""
    take = checkpoint_writer._take

    def late(pieces: deque[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.3)
        return take(pieces)

    monkeypatch.setattr(checkpoint_writer, "_take", late)
    short, longer = set_up_toy("short", "train.steps=10"), set_up_toy("longer", "train.steps=20")
    train(short)
    train(longer)
    first, last = list_checkpoints(longer.run.checkpoints)
    weights = choose_checkpoint(short.run.checkpoints, "last").load_model()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in first.load_model().items())
    assert last.step == 20


def test_a_folder_of_checkpoints_that_vanishes_is_made_anew(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = set_up_toy("run", "train.steps=30")

    def remove() -> None:
        training.checkpoints.writer.wait_written()
        shutil.rmtree(training.run.checkpoints)

    at_step(training, monkeypatch, 15, remove)
    assert train(training) is Outcome.FINISHED
    assert [checkpoint.step for checkpoint in list_checkpoints(training.run.checkpoints)] == [20, 30]
    assert events(training) == []


def test_old_checkpoints_that_cannot_be_removed_are_reported_and_training_goes_on(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(checkpoint_policy, "prune_checkpoints", refuse)
    training = set_up_toy("run", "train.steps=30")
    assert train(training) is Outcome.FINISHED
    assert events(training) == ["old checkpoints could not be removed: not yours"] * 3


def test_a_last_checkpoint_that_vanishes_is_written_again(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    training = set_up_toy("run", "train.steps=10")
    wait_written, doomed = (
        training.checkpoints.writer.wait_written,
        [training.run.checkpoints / "step-00000010"],
    )

    def written_and_gone() -> None:
        wait_written()
        if is_complete(doomed[0]):
            shutil.rmtree(doomed[0])
            doomed[0] = Path("nothing more")

    monkeypatch.setattr(training.checkpoints.writer, "wait_written", written_and_gone)
    assert train(training) is Outcome.FINISHED
    assert [checkpoint.step for checkpoint in list_checkpoints(training.run.checkpoints)] == [10]
    assert "step-00000010 has vanished; trying again" in events(training)[0]


def test_a_step_that_is_not_finite_is_skipped_and_counted(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = set_up_toy("run", "train.steps=8")
    spoil(training, monkeypatch, range(12, 14))  # two slots of step 3
    assert train(training) is Outcome.FINISHED
    assert training.state.skipped_steps == 1
    assert events(training) == ["step 3 skipped: its loss or gradient is not finite"]
    assert torch.isfinite(training.model.flat.weights).all()


def test_with_float16_a_skipped_step_is_told_with_the_new_scale(set_up_toy: SetUp) -> None:
    training = set_up_toy("run", "train.precision=fp16")
    loop.skip_update(training)
    assert events(training) == [
        "step 1 skipped: its loss or gradient is not finite; the loss scale is now 32768"
    ]


def test_many_in_a_row_go_back_to_the_last_checkpoint_and_end_as_if_nothing_had_been(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 15 falls due among them, and waits."""
    monkeypatch.setattr(loop, "MAX_SKIPPED_IN_A_ROW", 4)
    settings = ("train.steps=20", "checkpoint.every=5")
    whole, spoilt = set_up_toy("whole", *settings), set_up_toy("spoilt", *settings)
    train(whole)
    spoil(spoilt, monkeypatch, range(5 * 12, 5 * 16))  # steps 13 to 16
    assert train(spoilt) is Outcome.FINISHED
    assert "4 steps in a row" in events(spoilt)[-1]
    assert "going back to step 10" in events(spoilt)[-1]
    assert torch.equal(whole.model.flat.weights, spoilt.model.flat.weights)
    assert spoilt.state == whole.state


def test_a_checkpoint_that_falls_due_at_a_skipped_step_is_taken_at_the_next(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = set_up_toy("run", "train.steps=24")
    spoil(training, monkeypatch, range(5 * 9, 5 * 11))  # steps 10 and 11
    assert train(training) is Outcome.FINISHED
    training.records.flush()
    records = read_records(training.run.worker_records(0))
    assert [record["step"] for record in records if record["kind"] == "checkpoint"] == [12, 20, 24]


def test_going_back_a_second_time_stops_with_advice(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MAX_SKIPPED_IN_A_ROW", 4)
    training = set_up_toy("run", "train.steps=40")
    spoil(training, monkeypatch, range(5 * 12, 10**6))
    with pytest.raises(TrainingError, match=r"not finite again; lower the learning rate"):
        train(training)
    assert [checkpoint.step for checkpoint in list_checkpoints(training.run.checkpoints)] == [10]


def test_a_failed_save_is_reported_and_tried_again_and_training_goes_on(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echelon.train.checkpoint_policy._FIRST_RETRY_S", 0.0)
    training = set_up_toy("run", "train.steps=20", "checkpoint.every=10")
    training.checkpoints._retry_s = 0.0
    fsync, failures, take_step = os.fsync, 0, loop.take_step

    def take_step_when_written(training: Training, step: int) -> loop.StepResult:
        """The thread that saves has a low priority: the steps must not run away from it."""
        training.checkpoints.writer.wait_written()
        return take_step(training, step)

    monkeypatch.setattr(loop, "take_step", take_step_when_written)

    def full_for_a_while(descriptor: int) -> None:
        nonlocal failures
        if failures < 2:
            failures += 1
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", full_for_a_while)
    assert train(training) is Outcome.FINISHED
    told = events(training)
    assert len(told) == 2
    assert all("No space left on device" in message and "training continues" in message for message in told)
    records = read_records(training.run.worker_records(0))
    steps = [record["step"] for record in records if record["kind"] == "checkpoint"]
    assert steps[-1] == 20
    assert 10 < steps[0] < 20, "saved again before the next one was due"


def test_a_disk_that_stays_full_ends_the_run_with_a_clear_error_and_the_old_checkpoint(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    training = set_up_toy("run", "train.steps=10")
    train(training)
    longer = set_up_toy("run", "train.steps=15")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", full)
    with pytest.raises(
        CheckpointError, match=r"could not be saved: .*No space left.*resumes from the newest"
    ):
        train(longer)
    assert choose_checkpoint(longer.run.checkpoints, "last").step == 10


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # of TensorBoard's own thread
def test_a_full_run_folder_stops_nothing_and_each_writer_reports_it_once(
    set_up_toy: SetUp, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is full from step 12 to 50: TensorBoard, records and checkpoints cannot be written, nor the recipe, which gets
    the interval at step 30."""
    monkeypatch.setattr("echelon.train.trackers._FLUSH_S", 0)
    training = set_up_toy(
        f"{small_disk.name}/run",
        *("train.steps=60", "train.log_every=1"),
        *("track.tensorboard=true", "checkpoint.every=auto", "checkpoint.failure_hours=0.001"),
    )
    (tracker,) = training.trackers
    with contextlib.ExitStack() as full:

        def make_room() -> None:
            wait_until(lambda: tracker._is_broken)  # type: ignore[attr-defined]
            full.close()

        at_step(training, monkeypatch, 12, lambda: full.enter_context(filled(small_disk)))
        at_step(training, monkeypatch, 50, make_room)
        assert train(training) is Outcome.FINISHED
    tracker.close()
    told = events(training)
    assert len([message for message in told if "TensorBoard gets no more points" in message]) == 1
    assert len([message for message in told if "could not be noted in the recipe" in message]) == 1
    records = read_records(training.run.worker_records(0))
    assert [record["step"] for record in records if record["kind"] == "step"] == list(range(1, 61))
    assert choose_checkpoint(training.run.checkpoints, "last").step == 60


def test_the_automatic_interval_is_chosen_once_written_down_and_kept(set_up_toy: SetUp) -> None:
    training = set_up_toy("run", "checkpoint.every=auto", "checkpoint.failure_hours=0.001", "train.steps=60")
    train(training)
    every = training.state.checkpoint_every
    assert every is not None
    assert load_recipe(training.run.recipe).checkpoint.every == every
    (message,) = events(training)
    assert message.startswith(f'checkpoint.every = "auto" is {every} steps')
    again = set_up_toy("run", "checkpoint.every=auto", "checkpoint.failure_hours=0.001", "train.steps=61")
    assert again.state.checkpoint_every == every
    assert again.state.step > RESOLVE_STEP
    train(again)
    assert again.state.checkpoint_every == every


def test_a_run_that_goes_on_before_the_interval_was_chosen_measures_anew(set_up_toy: SetUp) -> None:
    train(set_up_toy("run", "checkpoint.every=auto", "train.steps=15"))
    again = set_up_toy("run", "checkpoint.every=auto", "train.steps=60")
    train(again)
    (message,) = events(again)
    assert "a save costs 0.000 s" not in message
    assert 25 in [
        record["step"]
        for record in read_records(again.run.worker_records(0))
        if record["kind"] == "checkpoint"
    ]


def test_a_run_that_stops_at_a_step_goes_on_and_ends_as_if_it_had_not(set_up_toy: SetUp) -> None:
    schedule = ["schedule.kind=cosine", "schedule.learning_rate=1e-3", "schedule.warmup_steps=1"]
    whole = set_up_toy("whole", "train.steps=6", *schedule)
    assert train(whole) is Outcome.FINISHED
    first = set_up_toy("stopped", "train.steps=6", "train.stop_at=4", *schedule)
    assert (train(first), first.state.step) == (Outcome.PAUSED, 4)
    assert train(set_up_toy("stopped", "train.steps=6", "train.stop_at=4", *schedule)) is Outcome.PAUSED
    second = set_up_toy("stopped", "train.steps=6", *schedule)
    assert (second.state.step, train(second)) == (4, Outcome.FINISHED)
    assert torch.equal(second.model.flat.weights, whole.model.flat.weights)


def test_stopping_at_a_step_that_is_saved_already_saves_nothing_twice(set_up_toy: SetUp) -> None:
    training = set_up_toy("run", "train.steps=10")
    train(training)
    folder = choose_checkpoint(training.run.checkpoints, "last").folder
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    training.checkpoints.save(training.state)
    training.checkpoints.finish(training.state)
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before


def test_a_step_goes_backward_reduce_unscale_clip_update(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = set_up_toy("run", "train.precision=fp16", "train.clip_norm=1e-3")
    training.model.module.train()
    loop.take_step(training, 1)  # in which gradients have no scale yet
    seen: list[str] = []

    def note(owner: object, name: str) -> None:
        act = getattr(owner, name)

        def noted(*arguments: object) -> object:
            seen.append(name)
            return act(*arguments)

        monkeypatch.setattr(owner, name, noted)

    for name in ("backward", "unscale", "clip", "update_weights"):
        note(loop, name)
    for name in ("reduce", "after_update"):
        note(training.exchange, name)
    result = loop.take_step(training, 2)
    assert seen == ["backward", "reduce", "unscale", "clip", "update_weights", "after_update"]
    clipped = torch.linalg.vector_norm(training.model.flat.gradients).item()
    assert clipped == pytest.approx(1e-3, rel=1e-4)
    assert result.gradient_norm > 2e-3


def test_planning_a_step_is_data_and_not_communication(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = set_up_toy("run")
    slots, planned_s = training.task.slots, 0.0

    def plan_slowly(step: int) -> Sequence[Slot]:
        nonlocal planned_s
        started = time.perf_counter()
        time.sleep(0.3)
        found = slots(step)
        planned_s = time.perf_counter() - started
        return found

    monkeypatch.setattr(training.task, "slots", plan_slowly)
    training.model.module.train()
    loop.take_step(training, 1)
    phases = training.meter.take()["phases"]
    assert phases["data"] >= 0.9 * planned_s


def test_a_checkpoint_made_with_kernels_goes_on_in_plain_pytorch(set_up_toy: SetUp) -> None:
    whole = set_up_toy("whole", "train.steps=15")
    if not whole.task.kernels.startswith("own kernels"):
        pytest.skip(whole.task.kernels)
    train(whole)
    train(set_up_toy("run", "train.steps=10"))
    going_on = set_up_toy("run", "train.steps=15", "train.kernels=off")
    assert going_on.task.kernels.startswith("plain PyTorch")
    assert going_on.state.step == 10
    train(going_on)
    torch.testing.assert_close(going_on.model.flat.weights, whole.model.flat.weights, rtol=1e-2, atol=1e-3)


def test_a_run_whose_upload_was_cut_short_uploads_when_it_goes_on(set_up_toy: SetUp) -> None:
    train(set_up_toy("run", "train.steps=10"))
    there = "memory://cut-short"
    again = set_up_toy("run", "train.steps=10", f"checkpoint.mirror={there}")
    assert train(again) is Outcome.FINISHED
    assert again.checkpoints.mirror is not None
    again.checkpoints.mirror.finish(again.group.heart)
    assert list_folders(f"{there}/checkpoints") == ["step-00000010"]


def test_a_mirror_slower_than_saving_gets_what_it_began_with_and_then_the_newest(
    set_up_toy: SetUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_go_on, there = threading.Event(), threading.Event(), "memory://slow"

    def put_slowly(folder: Path, address: str) -> bool:
        has_begun.set()
        may_go_on.wait()
        return put_folder(folder, address)

    def put_and_see_it_begin(folder: Path) -> None:
        put(folder)
        has_begun.wait()

    monkeypatch.setattr(mirror, "put_folder", put_slowly)
    training = set_up_toy("run", "train.steps=30", "checkpoint.keep=2", f"checkpoint.mirror={there}")
    slow = training.checkpoints.mirror
    assert slow is not None
    put = slow.put
    monkeypatch.setattr(slow, "put", put_and_see_it_begin)
    train(training)
    may_go_on.set()
    slow.finish(training.group.heart)
    assert list_folders(f"{there}/checkpoints") == ["step-00000010", "step-00000030"]
    assert not any("mirroring failed" in message for message in events(training))
