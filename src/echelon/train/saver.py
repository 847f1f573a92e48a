"""Saving behind training's back.

A checkpoint is a snapshot of tensors that only an update changes. So a thread copies them while the next step's
forward and backward run, and only the next update waits for the copy; writing, hashing and fsync follow behind, at
the lowest priority the system has. There is one snapshot buffer: a second save waits until the first is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from echelon.train.checkpoint import MODEL, STATE, TrainingState, shard_file, write_sidecar, write_state
from echelon.train.tensorfile import write_tensors

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class SaveJob:
    """One worker's part of a checkpoint: files of named tensors, and for worker 0 the state that names all files."""

    folder: Path
    files: Mapping[str, Mapping[str, Tensor]]
    state: TrainingState | None = None
    all_files: tuple[str, ...] = ()


@dataclass
class Saver:
    """Writes this worker's part of checkpoints; at most one is under way."""

    _thread: threading.Thread | None = None
    _is_copied: threading.Event = field(default_factory=threading.Event)
    _buffers: dict[str, Arrays] = field(default_factory=dict)
    _error: OSError | None = None
    waited_s: float = 0.0
    """How long training has stood still for saves, in all."""

    def start(self, job: SaveJob) -> None:
        """Begin to save; until `wait_copied` returns, the job's tensors must not change."""
        self.wait_written()
        self._error = None
        self._is_copied.clear()
        self._thread = threading.Thread(target=self._save, args=(job,), name="saver", daemon=True)
        self._thread.start()

    def wait_copied(self) -> None:
        """Return when the tensors may change again."""
        if self._thread is not None and not self._is_copied.is_set():
            self.waited_s += _timed(self._is_copied.wait)

    def wait_written(self) -> None:
        """Return when nothing is under way any more."""
        if self._thread is not None:
            self.waited_s += _timed(self._thread.join)
            self._thread = None

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def take_error(self) -> OSError | None:
        """What went wrong with the last save; asked again, nothing."""
        error, self._error = self._error, None
        return error

    def _save(self, job: SaveJob) -> None:
        try:
            try:
                copies = {name: self._copy(name, tensors) for name, tensors in job.files.items()}
            finally:
                self._is_copied.set()
            _yield_to_training()
            write_job(job, copies)
        except OSError as error:
            self._error = error

    def _copy(self, file: str, tensors: Mapping[str, Tensor]) -> Arrays:
        """The tensors in buffers that are kept from save to save: the first save alone pays for the memory."""
        buffers = self._buffers.setdefault(file, {})
        for name, tensor in tensors.items():
            live = tensor.detach().cpu().numpy()
            if name not in buffers or buffers[name].shape != live.shape:
                buffers[name] = np.empty_like(live)
            np.copyto(buffers[name], live)  # without the interpreter's lock, on one core
        return {name: buffers[name] for name in tensors}


def write_job(job: SaveJob, copies: Mapping[str, Arrays]) -> None:
    """Write a worker's files, then vouch for each; when this returns, its part survives a power cut."""
    written = {name: write_tensors(job.folder / name, arrays) for name, arrays in copies.items()}
    if job.state is not None:
        written[STATE] = write_state(job.folder, job.state, job.all_files)
    for name, result in written.items():
        write_sidecar(job.folder, name, result)


def plan_files(
    model: Mapping[str, Tensor], optimiser: Mapping[str, Tensor], rank: int, size: int
) -> tuple[dict[str, dict[str, Tensor]], tuple[str, ...]]:
    """What worker `rank` writes, file by file, and the names of all workers' files.

    Worker 0 writes the weights; the optimiser's tensors, largest first, each go to whoever has least to write.
    """
    loads = [sum(tensor.nbytes for tensor in model.values()), *([0] * (size - 1))]
    shares: list[dict[str, Tensor]] = [{} for _ in range(size)]
    for name in sorted(optimiser, key=lambda name: (-optimiser[name].nbytes, name)):
        least = min(range(size), key=loads.__getitem__)
        shares[least][name] = optimiser[name]
        loads[least] += optimiser[name].nbytes
    mine: dict[str, dict[str, Tensor]] = {MODEL: dict(model)} if rank == 0 else {}
    mine[shard_file(rank, size)] = shares[rank]
    return mine, (MODEL, *(shard_file(other, size) for other in range(size)))


def _yield_to_training() -> None:
    """Let this thread run only where the processors have nothing else to do."""
    with contextlib.suppress(
        OSError, AttributeError
    ):  # not Linux, or not allowed: the usual priority does too
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _timed(wait: Callable[[], object]) -> float:
    started = time.perf_counter()
    wait()
    return time.perf_counter() - started
