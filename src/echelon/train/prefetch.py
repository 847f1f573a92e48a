"""Slots on their way from disk to the model, the next one in a thread if that gains time.

On a GPU the processors are idle while it computes, so the next slot is read and varied meanwhile: Pillow, numpy and
copies to the GPU let the training thread run. On a CPU the model uses every core that a worker has; there a thread
would take from it what it saves, so slots are loaded in turn.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from echelon.tasks.task import Slot, Task


class SlotPrefetch:
    """Loads a worker's slots. What is loaded is the same either way: slots are pure functions of step and number."""

    def __init__(self, task: Task, *, is_ahead: bool) -> None:
        self._task = task
        self._thread = ThreadPoolExecutor(1, "prefetch") if is_ahead else None
        self._ahead: dict[tuple[int, int], Future[Any]] = {}
        """The slot that is being loaded, by step and number."""

    def read(self, step: int, number: int, slot: Slot, mine: range) -> Any:
        """Return the slot's tensors; an error of loading them ahead is raised here.

        `mine` are the slots that this worker computes in the step, and most likely in the next one.
        """
        if self._thread is None:
            return self._task.load(slot)
        loading = self._ahead.get((step, number))
        batch = self._task.load(slot) if loading is None else loading.result()
        following = _after(step, number, mine)
        self._ahead = {following: self._thread.submit(self._load, *following)}
        return batch

    def close(self) -> None:
        """End the thread; what it has loaded is dropped."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._ahead = {}

    def _load(self, step: int, number: int) -> Any:
        return self._task.load(self._task.slots(step)[number])


def _after(step: int, number: int, mine: range) -> tuple[int, int]:
    later = mine.index(number) + 1
    return (step, mine[later]) if later < len(mine) else (step + 1, mine[0])


def gains_by_prefetch(device: torch.device) -> bool:
    """Whether a thread that loads gains time."""
    return device.type == "cuda"
