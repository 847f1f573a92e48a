"""Saving in the background, while training continues.

A checkpoint is a snapshot of tensors that only an update changes. So a thread copies them while the next step's
forward and backward run, and only the next update waits for the copy; writing, checksums and fsync follow behind. The
thread has a low priority: when all cores are busy training, it does little, and the update copies what is left itself,
with all of them. There is one snapshot: a second save waits until the first is written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch import Tensor

from echelon.files.checkpoint_layout import (
    MODEL,
    STATE,
    TrainingState,
    shard_file,
    write_sidecar,
    write_state,
)
from echelon.runfolder import sync_to_disk
from echelon.train.tensorfile import TensorImage

TensorPair = tuple[Tensor, Tensor]
"""A part of a snapshot, and the part of a live tensor that it is a copy of."""
_PIECE_NUMBERS = 2**22


@dataclass(frozen=True)
class SaveJob:
    """One worker's part of a checkpoint: files of named tensors, and for worker 0 the state that names all files."""

    folder: Path
    files: Mapping[str, Mapping[str, Tensor]]
    state: TrainingState | None = None
    all_files: tuple[str, ...] = ()
    may_write: Callable[[], None] = lambda: None
    """Raises if this worker must no longer mark files as complete."""


class CheckpointWriter:
    """Writes this worker's part of checkpoints; at most one is under way."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        """How long training has stood still for saves, in all."""
        self._thread: threading.Thread | None = None
        self._to_copy: deque[TensorPair] = deque()
        self._is_copied = threading.Event()
        self._copying = threading.Lock()
        """Held by the update while it copies, so that nothing is written before all of it is copied."""
        self._images: dict[str, TensorImage] = {}
        self._error: Exception | None = None

    def start(self, job: SaveJob) -> None:
        """Begin to save; until `wait_copied` returns, the job's tensors must not change."""
        self.wait_written()
        self._is_copied.clear()
        images = {name: self._plan_copies(name, tensors) for name, tensors in job.files.items()}
        self._run(lambda: self._save(job, images))

    def tidy(self, action: Callable[[], None]) -> None:
        """Run `action` in the background: removing old checkpoints can take as long as saving."""
        self.wait_written()
        self._is_copied.set()
        self._run(action)

    def _run(self, work: Callable[[], None]) -> None:
        self._error = None
        self._thread = threading.Thread(target=self._try, args=(work,), name="checkpoint-writer", daemon=True)
        self._thread.start()

    def _try(self, work: Callable[[], None]) -> None:
        _yield_to_training()
        try:
            work()
        except Exception as error:  # whatever it was, the checkpoint policy reports it
            self._error = error

    def wait_copied(self) -> None:
        """Return when the tensors may change again: what the thread has not copied yet is copied here, by all cores."""
        if self._thread is not None and not self._is_copied.is_set():
            started = time.perf_counter()
            with self._copying:
                while (piece := _take(self._to_copy)) is not None:
                    copy, live = piece
                    copy.copy_(live)
            self._is_copied.wait()
            self.waited_s += time.perf_counter() - started

    def wait_written(self) -> None:
        """Return when nothing is under way any more."""
        if self._thread is not None:
            self.wait_copied()
            started = time.perf_counter()
            self._thread.join()
            self._thread = None
            self.waited_s += time.perf_counter() - started

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def take_error(self) -> Exception | None:
        """What went wrong with the last save; asked again, nothing."""
        error, self._error = self._error, None
        return error

    def _plan_copies(self, file: str, tensors: Mapping[str, Tensor]) -> TensorImage:
        """Note what is to be copied, piece by piece, into the file's image, which is kept from save to save."""
        as_they_lie = dict(sorted(tensors.items(), key=lambda named: named[1].data_ptr()))
        image = self._images.get(file)
        if image is None or not image.fits(as_they_lie):
            image = self._images[file] = TensorImage(as_they_lie)
        pairs = ((copy.view(-1), tensors[name].detach().reshape(-1)) for name, copy in image.tensors.items())
        for copy, live in _joined(pairs):
            self._to_copy.extend(zip(_pieces(copy), _pieces(live), strict=True))
        return image

    def _save(self, job: SaveJob, images: Mapping[str, TensorImage]) -> None:
        try:
            while (piece := _take(self._to_copy)) is not None:
                copy, live = piece
                np.copyto(copy.numpy(), live.cpu().numpy())  # without the interpreter's lock, on one core
        finally:
            self._to_copy.clear()
            self._is_copied.set()
        with self._copying:  # the update may still be copying the pieces that it took
            pass
        write_job(job, images)


def _take(pieces: deque[TensorPair]) -> TensorPair | None:
    """The next piece; None if the other thread has taken the last."""
    try:
        return pieces.popleft()
    except IndexError:
        return None


def _joined(pairs: Iterable[TensorPair]) -> Iterator[TensorPair]:
    """Pairs of flat tensors, put together if both follow the ones before in memory.

    Each piece that the thread copies takes the interpreter's lock twice; the model's tensors are hundreds, but lie in
    a few long vectors.
    """
    run: TensorPair | None = None
    for copy, live in pairs:
        if run is not None and _follows(run[0], copy) and _follows(run[1], live):
            count = len(run[0]) + len(copy)
            run = run[0].as_strided((count,), (1,)), run[1].as_strided((count,), (1,))
            continue
        if run is not None:
            yield run
        run = copy, live
    if run is not None:
        yield run


def _follows(one: Tensor, other: Tensor) -> bool:
    """Whether a flat tensor begins where another ends."""
    is_same_memory = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    is_same = is_same_memory and one.dtype == other.dtype
    return is_same and one.storage_offset() + len(one) == other.storage_offset()


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    """A flat tensor as views of at most _PIECE_NUMBERS numbers."""
    return (flat[start : start + _PIECE_NUMBERS] for start in range(0, max(len(flat), 1), _PIECE_NUMBERS))


def write_job(job: SaveJob, images: Mapping[str, TensorImage]) -> None:
    """Write a worker's files, then vouch for each; when this returns, its part survives a power cut."""
    written = {name: image.write(job.folder / name, job.may_write) for name, image in images.items()}
    sync_to_disk(job.folder.parent)
    if job.state is not None:
        job.may_write()
        written[STATE] = write_state(job.folder, job.state, job.all_files)
    for name, result in written.items():
        job.may_write()
        write_sidecar(job.folder, name, result)


def plan_files(
    model: Mapping[str, Tensor],
    optimiser: Mapping[str, Tensor],
    rank: int,
    size: int,
    own: Mapping[str, Tensor] = MappingProxyType({}),
) -> tuple[dict[str, dict[str, Tensor]], tuple[str, ...]]:
    """What worker `rank` writes, file by file, and the names of all workers' files.

    Worker 0 writes the weights; the optimiser's tensors, largest first, each go to whoever has least to write. What is
    a worker's `own` it writes itself.
    """
    loads = [sum(tensor.nbytes for tensor in model.values()), *([0] * (size - 1))]
    shares: list[dict[str, Tensor]] = [{} for _ in range(size)]
    for name in sorted(optimiser, key=lambda name: (-optimiser[name].nbytes, name)):
        least = min(range(size), key=loads.__getitem__)
        shares[least][name] = optimiser[name]
        loads[least] += optimiser[name].nbytes
    mine: dict[str, dict[str, Tensor]] = {MODEL: dict(model)} if rank == 0 else {}
    mine[shard_file(rank, size)] = shares[rank] | dict(own)
    return mine, (MODEL, *(shard_file(other, size) for other in range(size)))


def _yield_to_training() -> None:
    """Take the smallest share of a processor that still is one: 1.5% if training keeps all of them busy.

    Idle priority is no share at all: if OpenMP's threads spin between their tasks, a save might never end.
    """
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        with contextlib.suppress(OSError):  # not allowed: the usual priority does too
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
