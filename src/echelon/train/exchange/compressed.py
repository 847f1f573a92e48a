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

    def __init__(self, group: Group, codec: Codec, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(group)
        self._codec, self._bucket_bytes = codec, bucket_bytes
        self._feedback: ErrorFeedback | None = None
        self._buckets: Buckets | None = None

    def start(self) -> None:
        if self._codec.is_lossy:
            self._feedback = ErrorFeedback(self.group, self.flat.gradients)
        if self.group.size > 1:
            self._channel = self.group.channel()
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
            self._buckets = Buckets(self.flat, self.flat.gradients, self._bucket_bytes, self._send)

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
        task = self._thread.submit(sum_encoded, self._channel, self._codec, bucket, self._owed(bucket))
        return Reduction(task, self.group)

    def _owed(self, bucket: Tensor) -> Tensor | None:
        if self._feedback is None:
            return None
        start = bucket.storage_offset() - self.flat.gradients.storage_offset()
        return self._feedback.owed[start : start + len(bucket)]


class Reduction:
    """A sum on its way, which the launcher sees when it is waited for."""

    def __init__(self, future: Future[None], group: Group) -> None:
        self._future, self._group = future, group

    def wait(self) -> object:
        with self._group.heart.waiting():
            return self._future.result()


def sum_encoded(group: Group, codec: Codec, vector: Tensor, owed: Tensor | None = None) -> None:
    """Replace `vector` by its sum over the workers; `owed` is added, and becomes what was left out. Collective."""
    size, count = group.size, len(vector)
    if owed is not None:
        vector += owed
    width = math.ceil(count / size / codec.multiple) * codec.multiple
    parts_WN = F.pad(vector, (0, size * width - count)).view(size, width)
    sent_WB = codec.encode(parts_WN)
    sum_N = codec.decode(group.all_to_all(sent_WB)).sum(dim=0)
    sum_B = codec.encode(sum_N.unsqueeze(0))
    sums_WB = group.all_gather(sum_B)
    if owed is not None:
        parts_WN -= codec.decode(sent_WB)
        parts_WN[group.rank] += sum_N - codec.decode(sum_B)[0]
        left = parts_WN.view(-1)[:count]
        owed.copy_(
            torch.where(left.isfinite(), left, 0.0)
        )  # a step that is not finite is skipped, and not owed
    vector.copy_(codec.decode(sums_WB).view(-1)[:count])
