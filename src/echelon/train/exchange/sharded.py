"""The exact exchange with the optimiser shared out: each worker keeps and updates a part of the weights.

A worker gets the sums of the gradients of its part, updates the weights there, and gets the others' parts: the bytes of
an all-reduce. Through the network these parts are pieces of each bucket, so that every worker sends and receives all
the time. On one host they are one piece each: sums are read from the memory of the others, and the new weights go where
the gradients were.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from echelon.comm.group import Group, Pending
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES, Buckets
from echelon.train.exchange.host_sum import HostSum
from echelon.train.exchange.line import Reduction
from echelon.train.exchange.ownership import Portion, share_out, spans_of
from echelon.train.exchange.saved_parts import SavedParts
from echelon.train.exchange.traits import ExchangeTraits, Reduced
from echelon.train.flat import FlatParameters
from echelon.train.gradient_norm import block_norms, cut_blocks, total_norm
from echelon.train.optimiser import FlatOptimiser


class Sharded(HostSum):
    """Of several workers. If those of one host can share no memory, all goes through the network."""

    def __init__(self, group: Group, bucket_bytes: int = BUCKET_BYTES, *, is_one_host: bool) -> None:
        assert group.size > 1, "one worker has nobody to share with"
        super().__init__(group, bucket_bytes)
        self.traits = ExchangeTraits("sharded")
        self._is_one_host = is_one_host

    def attach(
        self, flat: FlatParameters, optimiser: FlatOptimiser | None, may_change: Callable[[], None]
    ) -> None:
        assert optimiser is not None, "there is nothing to share out"
        self._optimiser = optimiser
        super().attach(flat, optimiser, may_change)

    def make_buffer(self, length: int) -> Tensor:
        return super().make_buffer(length) if self._is_one_host else AllReduce.make_buffer(self, length)

    def connect(self, sums: Tensor) -> None:
        rank, size, flat = self.group.rank, self.group.size, self.flat
        # Not replicated: a lost worker's part is nowhere else.
        self.traits = ExchangeTraits("host_sum" if self.is_in_memory else "sharded")
        blocks = cut_blocks(self._optimiser.stretches)
        self._portions = share_out(blocks, size, flat.size if self.is_in_memory else self._bucket_bytes // 4)
        self._own = spans_of(self._portions, rank)
        self._numbers.keep(self._own)
        self._optimiser.keep(self._own)
        self._norms = flat.weights.new_zeros(len(blocks))
        is_mine = [any(span.start <= block.start < span.stop for span in self._own) for block in blocks]
        self._is_own_norm = torch.tensor(is_mine, device=flat.weights.device)
        self._saved = SavedParts(
            self.group, flat, self._optimiser, [spans_of(self._portions, other) for other in range(size)]
        )
        if not self.is_in_memory:
            self._portion_at = {portion.start: portion for portion in self._portions}
            self._channel = self.group.channel()
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="exchange-scatter")
            ends = [portion.end for portion in self._portions]
            self.buckets = Buckets(flat, sums[: flat.size], ends, self._start_scatter)

    def reduce(self) -> Reduced:
        if super().reduce().must_repeat:
            return Reduced(must_repeat=True)
        self._norms.zero_()
        self._norms[self._is_own_norm] = block_norms(self.flat.gradients, self._optimiser.spans)
        self.group.all_reduce(self._norms)  # others have zeros there
        return Reduced(whole_norm=total_norm(self._norms))

    def add_up(self) -> None:
        """Put the sums of this worker's part, and those that are not gradients, into the flat buffer. Collective."""
        if self._buffers is not None:
            self._add_up_in_memory(self._buffers)
            return
        assert self.buckets is not None
        self.buckets.finish_beside(self.group.start_all_reduce(self.flat.sums.view(torch.int32)))

    def _add_up_in_memory(self, buffers: list[Tensor]) -> None:
        rank, whole = self.group.rank, self.flat.size
        sums = [buffer.view(torch.int32) for buffer in buffers]
        others = [other for other in range(self.group.size) if other != rank]
        self.group.barrier()  # all backwards are over
        rest = torch.stack([each[whole:] for each in sums]).sum(0, dtype=torch.int32)
        for span in self._own:
            for other in others:
                sums[rank][span] += sums[other][span]
        self.group.barrier()  # all have read what they need: now it may change
        sums[rank][whole:] = rest

    def _start_scatter(self, bucket: Tensor) -> Pending:
        portion = self._portion_at[int(bucket.storage_offset() - self.flat.gradients.storage_offset())]
        return Reduction(self._thread.submit(self._scatter, bucket, portion), self.group)

    def _scatter(self, bucket: Tensor, portion: Portion) -> None:
        """Send everybody its piece of a bucket, and add up those that come."""
        pieces = [
            bucket[piece.start - portion.start : piece.stop - portion.start] for piece in portion.pieces
        ]
        others = [other for other in range(self.group.size) if other != self.group.rank]
        mine = pieces[self.group.rank]
        received = mine.new_empty((len(others), len(mine)))
        self._channel.swap([(other, pieces[other]) for other in others], zip(others, received, strict=True))
        for piece in received:
            mine += piece

    def after_update(self) -> None:
        """Get the weights that others have updated. Collective."""
        if self._buffers is not None:
            self._share_weights_in_memory(self._buffers)
        else:
            weights, rank = self.flat.weights, self.group.rank
            others = [other for other in range(self.group.size) if other != rank]
            self.group.swap(
                [(other, weights[span]) for other in others for span in spans_of(self._portions, rank)],
                [(other, weights[span]) for other in others for span in spans_of(self._portions, other)],
            )
        super().after_update()

    def _share_weights_in_memory(self, buffers: list[Tensor]) -> None:
        weights, rank = self.flat.weights, self.group.rank
        for span in self._own:
            buffers[rank][span] = weights[span]
        self.group.barrier()  # all parts are there
        for other in range(self.group.size):
            if other != rank:
                for span in spans_of(self._portions, other):
                    weights[span] = buffers[other][span]
        self.group.barrier()  # all workers have all parts: now the gradients may follow

    def optimiser_part(self) -> dict[str, Tensor]:
        return self._saved.collect()
