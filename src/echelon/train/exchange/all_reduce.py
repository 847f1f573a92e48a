"""The exact exchange: gradients are summed over the workers, in buckets, while backward is still running.

The sums are of whole numbers (whole_numbers.py): any number of workers, in any arrangement, ends with the same bits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.models.kernels.fixed_point import choose_fixed_point
from echelon.recipe.workers import share_of
from echelon.train.dealing import OwnSpeed, deal
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets, ends_at_parameters
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits, Reduced
from echelon.train.exchange.whole_numbers import Sum, WholeNumbers
from echelon.train.slots import Update

_LARGEST = "largest_gradients"


class AllReduce(GradientExchange):
    """Sums the flat gradient buffer over a group."""

    def __init__(self, group: Group, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, ExchangeTraits("all_reduce", is_replicated=True))
        self._bucket_bytes = bucket_bytes
        self._num_repeats = 0
        """Of the step under way."""
        self._speed, self._busy_s = OwnSpeed(), 0.0
        self._shares: list[int] = []
        """How many slots each worker gets."""
        self._mine = range(0)
        self._largest_before: Tensor | None = None
        """What the step under way began with; None between two steps."""

    def start(self) -> None:
        flat, size = self.flat, self.group.size
        self._shares = [len(share_of(flat.num_slots, rank, size)) for rank in range(size)]
        self._numbers = WholeNumbers(flat, choose_fixed_point(flat.weights.device))
        row_size = len(flat.slices) + 1
        flat.hold_whole_numbers(self.make_buffer(flat.num_reduced + size * row_size))
        # Each worker's largest gradients, and how long it takes for a slot; it leaves the others' rows zero.
        rows = flat.reduced[-size * row_size :].view(size, row_size)
        self._numbers.attach(self.group.rank, rows[:, :-1])
        self._seconds_per_slot = rows[:, -1]
        if self.group.size > 1:
            self.connect(flat.reduced.view(torch.int32))

    def make_buffer(self, length: int) -> Tensor:
        """Where gradients lie. Collective."""
        return self.flat.reduced.new_zeros(length)

    def connect(self, sums: Tensor) -> None:
        """Prepare to sum these whole numbers over the workers. Collective."""
        ends = ends_at_parameters(self.flat, self._bucket_bytes)
        self.buckets = Buckets(self.flat, sums, ends, self.group.start_all_reduce)

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        self._num_repeats = 0
        self._largest_before = self._numbers.largest
        self._numbers.choose_scales()
        end = sum(self._shares[: self.group.rank + 1])
        self._mine = range(end - self._shares[self.group.rank], end)
        yield Update(range(num_slots), self._mine)

    @contextlib.contextmanager
    def slot(self, last: bool) -> Iterator[None]:
        self._show_speed()
        started = time.perf_counter()
        with super().slot(last):
            yield
        if last and self.flat.weights.is_cuda:  # the slots before it are over when it is
            torch.cuda.synchronize(self.flat.weights.device)
        self._busy_s += time.perf_counter() - started

    def _show_speed(self) -> None:
        """Before the sum begins: `speed` is that of the steps before."""
        self._seconds_per_slot[self.group.rank] = self._speed.seconds_per_slot

    def reduce(self) -> Reduced:
        if not self._mine:
            self._show_speed()
        self._speed.note(self._busy_s, len(self._mine))
        self._busy_s = 0.0
        self.add_up()
        must_repeat = self._numbers.read() is Sum.TOO_LARGE
        self._num_repeats += must_repeat
        if not must_repeat:
            self._shares = deal(self._shares, self._seconds_per_slot.tolist())
        return Reduced(must_repeat=must_repeat)

    def add_up(self) -> None:
        if self.buckets:
            self.buckets.finish()

    def facts(self) -> dict[str, Any]:
        repeats = {"repeats": self._num_repeats} if self._num_repeats else {}
        return {"slots": len(self._mine)} | repeats

    def after_update(self) -> None:
        self._largest_before = None

    def state(self) -> ExchangeState:
        """As it was before the step, if a worker is lost in the middle of one."""
        largest = self._numbers.largest if self._largest_before is None else self._largest_before
        return ExchangeState(shared={_LARGEST: largest})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        unknown = torch.zeros_like(self._numbers.largest)
        self._numbers.largest = tensors.get(_LARGEST, unknown).clone()
