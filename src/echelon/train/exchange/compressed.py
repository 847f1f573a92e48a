"""Sums in fewer bytes: float16, bfloat16, or 8 bits with error feedback.

Each worker adds up one part of a bucket: all send it their encoded piece of that part, it sums in float32, in the order
of ranks, and sends the encoded sum to all. So everybody decodes the same bytes and the weights stay equal; the bytes
are those of a ring all-reduce, divided by what the encoding saves. Any dtype works on any backend: only bytes travel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor

from echelon.comm.group import Group
from echelon.train.exchange.buckets import Buckets
from echelon.train.exchange.codecs import Codec
from echelon.train.exchange.feedback import ErrorFeedback
from echelon.train.flat import FlatParameters


class Compressed:
    """Sums the flat gradient buffer over a group through a codec, in a thread, bucket by bucket, behind backward."""

    def __init__(self, group: Group, codec: Codec, bucket_bytes: int = 8 * 2**20) -> None:
        self._group, self._codec, self._bucket_bytes = group, codec, bucket_bytes
        self._may_change: Callable[[], None] = lambda: None
        self._feedback: ErrorFeedback | None = None
        self._buckets: Buckets | None = None

    def attach(self, flat: FlatParameters, may_change: Callable[[], None] = lambda: None) -> None:
        self._flat, self._may_change = flat, may_change
        if self._codec.is_lossy:
            self._feedback = ErrorFeedback(self._group, flat.gradients)
        if self._group.size == 1:
            return
        self._channel = self._group.channel()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self._buckets = Buckets(flat, flat.gradients, self._bucket_bytes, self._start)

    def slot(self, last: bool) -> AbstractContextManager[None]:
        return self._buckets.slot(last) if self._buckets else nullcontext()

    def update(self, apply: Callable[[], None]) -> None:
        if self._buckets:
            extras = self._group.start_all_reduce(self._flat.extras)  # loss and votes are few, and exact
            self._buckets.finish()
            extras.wait()
        elif self._feedback:
            self._feedback.pay_alone()
        apply()

    def settle(self) -> None:
        """Weights are equal after every update: nothing to do."""

    def shared_state(self) -> dict[str, Tensor]:
        return {}

    def own_state(self) -> dict[str, Tensor]:
        return self._feedback.state() if self._feedback else {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        if self._feedback:
            self._feedback.load_state(tensors)

    def _start(self, bucket: Tensor) -> _Reduction:
        if self._feedback:
            self._may_change()
        return _Reduction(self._thread.submit(self._reduce, bucket), self._group)

    def _reduce(self, bucket: Tensor) -> None:
        """Replace `bucket` by its sum over the workers."""
        size, rank = self._group.size, self._group.rank
        owed = self._owed(bucket)
        if owed is not None:
            bucket += owed
        width = _padded(len(bucket), size, self._codec.multiple)
        parts_WN = F.pad(bucket, (0, size * width - len(bucket))).view(size, width)
        sent_WB = self._codec.encode(parts_WN)
        received_WB = self._channel.all_to_all(sent_WB)
        sum_N = self._codec.decode(received_WB).sum(dim=0)
        sum_B = self._codec.encode(sum_N.unsqueeze(0))
        sums_WB = self._channel.all_gather(sum_B)
        if owed is not None:
            parts_WN -= self._codec.decode(sent_WB)
            parts_WN[rank] += sum_N - self._codec.decode(sum_B)[0]
            left = parts_WN.view(-1)[: len(bucket)]
            # A step that is not finite is skipped; it must not be owed for ever.
            owed.copy_(torch.where(left.isfinite(), left, 0.0))
        bucket.copy_(self._codec.decode(sums_WB).view(-1)[: len(bucket)])

    def _owed(self, bucket: Tensor) -> Tensor | None:
        if self._feedback is None:
            return None
        start = bucket.storage_offset() - self._flat.gradients.storage_offset()
        return self._feedback.owed[start : start + len(bucket)]


class _Reduction:
    """A bucket on its way, which the launcher sees when it is waited for."""

    def __init__(self, future: Future[None], group: Group) -> None:
        self._future, self._group = future, group

    def wait(self) -> object:
        with self._group.heart.waiting():
            return self._future.result()


def _padded(count: int, parts: int, multiple: int) -> int:
    """Numbers of each of `parts` equal parts that hold `count` together."""
    return math.ceil(count / parts / multiple) * multiple
