"""Sums in fewer bytes: float16, bfloat16, or 8 bits with error feedback."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from echelon.comm.group import Group
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets, ends_at_parameters
from echelon.train.exchange.codecs import Codec
from echelon.train.exchange.feedback import ErrorFeedback
from echelon.train.exchange.gradients import GradientExchange
from echelon.train.exchange.line import Line, Reduction
from echelon.train.exchange.traits import ExchangeState, ExchangeTraits


class Compressed(GradientExchange):
    """Sums the flat gradient buffer over a group through a codec, in a thread, bucket by bucket, behind backward."""

    def __init__(
        self, group: Group, codec: Codec, bucket_bytes: int = BUCKET_BYTES, num_local: int = 1
    ) -> None:
        """Host by host if each has `num_local` workers."""
        super().__init__(group, ExchangeTraits("compressed"))
        self._codec, self._bucket_bytes, self._num_local = codec, bucket_bytes, num_local
        self._feedback: ErrorFeedback | None = None

    def start(self) -> None:
        if self._codec.is_lossy:
            self._feedback = ErrorFeedback(self.group, self.flat.gradients)
        if self.group.size > 1:
            self._line = Line(self.group, self._codec, self._num_local)
            ends = ends_at_parameters(self.flat, self._bucket_bytes)
            self.buckets = Buckets(self.flat, self.flat.gradients, ends, self._send)

    def add_up(self) -> None:
        if self.buckets:
            # The loss, votes and statistics are few, and stay exact.
            self.buckets.finish_beside(self.group.start_all_reduce(self.flat.sums))
        elif self._feedback:
            self._feedback.pay_alone()

    def state(self) -> ExchangeState:
        return ExchangeState(own=self._feedback.state() if self._feedback else {})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        if self._feedback:
            self._feedback.load_state(tensors)

    def _send(self, bucket: Tensor) -> Reduction:
        if self._feedback:
            self.may_change()
        return self._line.start_sum(bucket, self._owed(bucket))

    def _owed(self, bucket: Tensor) -> Tensor | None:
        if self._feedback is None:
            return None
        start = bucket.storage_offset() - self.flat.gradients.storage_offset()
        return self._feedback.owed[start : start + len(bucket)]
