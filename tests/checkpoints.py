"""Whole checkpoints for tests, without a training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from echelon.files.checkpoint_layout import TrainingState, checkpoint_folder, clear_for_saving
from echelon.train.checkpoint_writer import SaveJob, plan_files, write_job
from echelon.train.tensorfile import TensorImage


def write_checkpoint(
    checkpoints: Path,
    state: TrainingState,
    model: dict[str, Tensor],
    optimiser: dict[str, Tensor],
    workers: int = 1,
) -> None:
    """Write the part of every worker, one after the other."""
    folder = checkpoint_folder(checkpoints, state.step)
    clear_for_saving(folder)
    for rank in range(workers):
        files, names = plan_files(model, optimiser, rank, workers)
        job = SaveJob(folder, files, state if rank == 0 else None, names)
        write_job(job, {name: image_of(tensors) for name, tensors in files.items()})


def image_of(tensors: Mapping[str, Tensor]) -> TensorImage:
    """The file that holds these tensors, in memory."""
    image = TensorImage(tensors)
    for name, tensor in tensors.items():
        image.tensors[name].copy_(tensor)
    return image
