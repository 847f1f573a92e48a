from __future__ import annotations

import builtins
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoints import image_of
from torch import Tensor

from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, clear_for_saving
from echelon.files.checksum import Written
from echelon.train import checkpoint_writer
from echelon.train.checkpoint import list_checkpoints, newest_good_checkpoint
from echelon.train.checkpoint_writer import CheckpointWriter, SaveJob, plan_files, write_job
from echelon.train.tensorfile import TensorImage


def _job(checkpoints: Path, step: int, weights: Tensor) -> SaveJob:
    folder = checkpoint_folder(checkpoints, step)
    clear_for_saving(folder)
    files, names = plan_files({"weights": weights}, {"exp_avg/weights": weights}, 0, 1)
    return SaveJob(folder, files, TrainingState(step=step), names)


def test_the_snapshot_is_that_of_the_step_although_weights_move_on(tmp_path: Path) -> None:
    writer, weights = CheckpointWriter(), torch.zeros(2_000_000)
    for step in range(1, 6):
        weights.fill_(step)
        writer.start(_job(tmp_path, step, weights))
        writer.wait_copied()
        weights.fill_(-1)
    writer.wait_written()
    for checkpoint in list_checkpoints(tmp_path):
        checkpoint.verify()
        assert checkpoint.load_model()["weights"].eq(checkpoint.step).all()
        assert checkpoint.load_optimiser()["exp_avg/weights"].eq(checkpoint.step).all()
    assert len(list_checkpoints(tmp_path)) == 5


def test_weights_may_change_while_the_disk_is_still_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", lambda _: may_write.wait())
    writer, weights = CheckpointWriter(), torch.ones(1000)
    writer.start(_job(tmp_path, 1, weights))
    writer.wait_copied()
    weights.zero_()
    assert writer.is_writing, "training goes on while the file is being written"
    may_write.set()
    writer.wait_written()
    assert list_checkpoints(tmp_path)[0].load_model()["weights"].eq(1).all()


class _WatchedLock:
    """A lock that says when the thread behind training comes to it."""

    def __init__(self, has_come: threading.Event) -> None:
        self._lock, self._has_come = threading.Lock(), has_come

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._has_come.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_nothing_is_written_while_the_update_is_still_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update takes every piece, and copies the last only when the writer waits for it, or has begun to write."""
    take, write = checkpoint_writer._take, TensorImage.write
    is_last_taken, has_come, is_copied = threading.Event(), threading.Event(), threading.Event()
    was_copied: list[bool] = []

    def slow_take(pieces: deque[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
        if threading.current_thread() is not threading.main_thread():
            is_last_taken.wait()
            return take(pieces)
        piece = take(pieces)
        if piece is None:
            is_copied.set()
        elif not pieces:
            is_last_taken.set()
            has_come.wait()
        return piece

    def watched_write(image: TensorImage, path: Path, may_replace: Callable[[], None]) -> Written:
        was_copied.append(is_copied.is_set())
        has_come.set()
        return write(image, path, may_replace)

    monkeypatch.setattr(checkpoint_writer, "_take", slow_take)
    monkeypatch.setattr(TensorImage, "write", watched_write)
    writer = CheckpointWriter()
    monkeypatch.setattr(writer, "_copying", _WatchedLock(has_come))
    writer.start(_job(tmp_path, 1, torch.ones(1000)))
    writer.wait_written()
    assert was_copied == [True, True], "of the model's file and of the optimiser's"
    assert list_checkpoints(tmp_path)[0].load_model()["weights"].eq(1).all()
    assert list_checkpoints(tmp_path)[0].load_optimiser()["exp_avg/weights"].eq(1).all()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_a_save_has_a_small_share_of_the_processor_and_never_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle priority starves where training keeps every core busy: a save must come to its end."""
    seen: list[tuple[int, int]] = []

    def look(_: int) -> None:
        thread = threading.get_native_id()
        seen.append((os.sched_getscheduler(thread), os.getpriority(os.PRIO_PROCESS, thread)))

    monkeypatch.setattr("echelon.train.tensorfile.os.fsync", look)
    writer, own = CheckpointWriter(), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    writer.start(_job(tmp_path, 1, torch.ones(10)))
    writer.wait_written()
    assert set(seen) == {(os.SCHED_OTHER, 19)}
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own, "training keeps its own"


def test_a_save_that_fails_is_reported_once_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, weights = CheckpointWriter(), torch.ones(10)
    with monkeypatch.context() as patch:
        patch.setattr(
            "echelon.train.tensorfile.os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full"))
        )
        writer.start(_job(tmp_path, 1, weights))
        writer.wait_written()
    error = writer.take_error()
    assert isinstance(error, OSError)
    assert error.errno == 28
    assert writer.take_error() is None
    assert list_checkpoints(tmp_path) == []
    writer.start(_job(tmp_path, 2, weights))
    writer.wait_written()
    assert writer.take_error() is None
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path)] == [2]


def test_the_workers_write_about_the_same_and_every_tensor_once() -> None:
    optimiser = {f"{kind}/{i}": torch.zeros(100 + 37 * i) for kind in ("a", "b") for i in range(20)}
    model = {f"{i}": torch.zeros(100 + 37 * i) for i in range(20)}
    for size in (1, 2, 3, 4):
        parts = [plan_files(model, optimiser, rank, size)[0] for rank in range(size)]
        written = [name for part in parts for tensors in part.values() for name in tensors]
        assert sorted(written) == sorted([*model, *optimiser])
        loads = [sum(t.nbytes for tensors in part.values() for t in tensors.values()) for part in parts]
        assert max(loads) - min(loads) <= max(t.nbytes for t in optimiser.values()) or size > 3


def _write_until(job: SaveJob, limit: int) -> int:
    """Write in a child process that dies just before its `limit`-th call of the system; its exit status."""
    child = os.fork()
    if child == 0:
        calls = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **keywords: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == limit:
                    os._exit(9)
                return function(*arguments, **keywords)

            return call

        for name in ("fsync", "replace", "open"):
            setattr(os, name, counted(getattr(os, name)))
        builtins.open = counted(builtins.open)
        write_job(job, {name: image_of(tensors) for name, tensors in job.files.items()})
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_crash_between_any_two_system_calls_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    writer = CheckpointWriter()
    writer.start(_job(tmp_path, 1, torch.ones(3000)))
    writer.wait_written()
    outcomes = []
    for limit in range(1, 60):
        status = _write_until(_job(tmp_path, 2, torch.full((3000,), 2.0)), limit)
        found, messages = newest_good_checkpoint(tmp_path)
        assert found is not None
        assert messages == [], "a save cut short is not damage"
        assert found.load_model()["weights"].eq(found.step).all()
        outcomes.append((status, found.step))
        if status == 0:
            break
    assert outcomes[-1] == (0, 2)
    assert len(outcomes) > 12, "the crashes must have covered the whole save"
    steps = [step for _, step in outcomes]
    assert steps == sorted(steps), "once the new checkpoint is whole it stays so"
    assert steps.count(1) > 10
