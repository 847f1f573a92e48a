"""Sums in fewer bytes: float16, bfloat16, or 8 bits with error feedback.

Each worker adds up one part of a bucket: all send it their encoded piece of that part, it sums in float32, in the order
of ranks, and sends the encoded sum to all. So everybody decodes the same bytes and the weights stay equal; the bytes
are those of a ring all-reduce, divided by what the encoding saves. Any dtype works on any backend: only bytes travel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.comm.group import Group
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets
from echelon.train.exchange.codecs import Codec
from echelon.train.exchange.feedback import ErrorFeedback
from echelon.train.exchange.gradients import GradientExchange


class Compressed(GradientExchange):
    """Sums the flat gradient buffer over a group through a codec, in a thread, bucket by bucket, behind backward."""

    name = "compressed"

    def __init__(self, group: Group, codec: Codec, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group)
        self._codec, self._bucket_bytes = codec, bucket_bytes
        self._feedback: ErrorFeedback | None = None
        self._buckets: Buckets | None = None

    def start(self) -> None:
        if self._codec.is_lossy:
            self._feedback = ErrorFeedback(self.group, self.flat.gradients)
        if self.group.size > 1:
            self._line = self.make_line()
            self._buckets = Buckets(self.flat, self.flat.gradients, self._bucket_bytes, self._send)

    def make_line(self) -> Line:
        """Collective."""
        return Line(self.group, self._codec, (self.group.channel(), self.group.channel()))

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return self._buckets.slot(last) if self._buckets else nullcontext()

    def reduce(self) -> None:
        if self._buckets:
            sums = self.group.start_all_reduce(self.flat.sums)  # loss, votes, statistics are few, and exact
            self._buckets.finish()
            sums.wait()
        elif self._feedback:
            self._feedback.pay_alone()

    def own_state(self) -> dict[str, Tensor]:
        return self._feedback.state() if self._feedback else {}

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


class Line:
    """Sums vectors over a group in two stages, each in a thread and over connections of its own.

    While the sums of one bucket come back, the pieces of the next go out: the line is never idle.
    """

    def __init__(
        self, group: Group, codec: Codec, channels: tuple[Group, Group], across: Group | None = None
    ) -> None:
        """`channels` connect those who share the work; sums go on to be summed `across` others like them."""
        self._group, self._codec = group, codec
        self._scattering, self._gathering = channels
        self._across = across
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"exchange-{stage}") for stage in (1, 2)]

    def start_sum(self, vector: Tensor, owed: Tensor | None = None) -> Reduction:
        """Begin to replace `vector` by its sum over the workers; `owed` is added, and becomes what was left out.

        All workers start the same sums in the same order.
        """
        parts = self._threads[0].submit(self._scatter, vector, owed)
        return Reduction(self._threads[1].submit(self._gather, vector, owed, parts), self._group)

    def _scatter(self, vector: Tensor, owed: Tensor | None) -> Tensor:
        """Send everybody its piece; the sum of the pieces that came."""
        size, codec = self._scattering.size, self._codec
        if owed is not None:
            vector += owed
        width = math.ceil(len(vector) / size / codec.multiple) * codec.multiple
        parts_WN = F.pad(vector, (0, size * width - len(vector))).view(size, width)
        sent_WB = codec.encode(parts_WN)
        sum_N = codec.decode(self._scattering.all_to_all(sent_WB)).sum(dim=0)
        if owed is not None:
            parts_WN -= codec.decode(sent_WB)
            owed.copy_(parts_WN.view(-1)[: len(vector)])
        return sum_N

    def _gather(self, vector: Tensor, owed: Tensor | None, parts: Future[Tensor]) -> None:
        """Send everybody the sum of this worker's piece, and put all sums in their places."""
        codec, sum_N = self._codec, parts.result()
        if self._across is not None:
            self._across.all_reduce(sum_N)
        sum_B = codec.encode(sum_N.unsqueeze(0))
        sums_WB = self._gathering.all_gather(sum_B)
        if owed is not None:
            start = self._gathering.rank * len(sum_N)
            mine = owed[start : start + len(sum_N)]
            mine += (sum_N - codec.decode(sum_B)[0])[: len(mine)]
            # A step that is not finite is skipped, and not owed.
            owed.copy_(torch.where(owed.isfinite(), owed, 0.0))
        vector.copy_(codec.decode(sums_WB).view(-1)[: len(vector)])


class Reduction:
    """A sum on its way, which the launcher sees when it is waited for."""

    def __init__(self, future: Future[None], group: Group) -> None:
        self._future, self._group = future, group

    def wait(self) -> object:
        with self._group.heart.waiting():
            return self._future.result()
