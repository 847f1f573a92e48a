"""The exact exchange: gradients are summed over the workers, in buckets, while backward is still running.

The sums are of whole numbers (whole_numbers.py): any number of workers, in any arrangement, ends with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from echelon.comm.group import Group
from echelon.models.kernels.fixed_point import choose_fixed_point
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits, Reduced
from echelon.train.exchange.whole_numbers import Sum, WholeNumbers
from echelon.train.slots import Update

_LARGEST = "largest_gradients"


class AllReduce(GradientExchange):
    """Sums the flat gradient buffer over a group."""

    def __init__(self, group: Group, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group, ExchangeTraits("all_reduce"))
        self._bucket_bytes = bucket_bytes
        self._num_repeats = 0
        """Of the step under way."""

    def start(self) -> None:
        flat = self.flat
        self._numbers = WholeNumbers(flat, choose_fixed_point(flat.weights.device))
        num_rows, row_size = self.group.size, WholeNumbers.row_size(flat)
        length = len(flat.reduced) + num_rows * row_size
        flat.hold_whole_numbers(self.make_buffer(length))
        self._numbers.attach(self.group.rank, flat.reduced[-num_rows * row_size :].view(num_rows, row_size))
        if self.group.size > 1:
            self.connect(flat.reduced.view(torch.int32))

    def make_buffer(self, length: int) -> Tensor:
        """Where gradients lie. Collective."""
        return self.flat.reduced.new_zeros(length)

    def connect(self, sums: Tensor) -> None:
        """Prepare to sum these whole numbers over the workers. Collective."""
        self.buckets = Buckets(self.flat, sums, self._bucket_bytes, self.group.start_all_reduce)

    def updates(self, step: int, num_slots: int) -> Iterator[Update]:
        self._num_repeats = 0
        self._numbers.choose_scales()
        yield from super().updates(step, num_slots)

    def reduce(self) -> Reduced:
        self.add_up()
        must_repeat = self._numbers.read() is Sum.TOO_LARGE
        self._num_repeats += must_repeat
        return Reduced(must_repeat=must_repeat)

    def add_up(self) -> None:
        if self.buckets:
            self.buckets.finish()

    def facts(self) -> dict[str, Any]:
        return {"repeats": self._num_repeats} if self._num_repeats else {}

    def state(self) -> ExchangeState:
        return ExchangeState(shared={_LARGEST: self._numbers.largest})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        unknown = torch.zeros_like(self._numbers.largest)
        self._numbers.largest = tensors.get(_LARGEST, unknown).clone()
