"""Packed sequences: all tokens of a batch one after the other, without padding.

N  tokens of the batch    B  sequences    L  length of the longest    D  features of a token, in any shape
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 32
"""Matrix products have a multiple of this many rows. torch compiles one for every shape that it meets (oneDNN), in half
a millisecond and half a megabyte, and packed batches have hundreds of lengths. Rounding up makes them few, for 16 rows
too many, on average, in a slot of a thousand."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """A batch of token sequences; none of them is empty."""

    tokens: Tensor
    """[N] int64, all sequences one after the other."""
    offsets: Tensor
    """[B+1] int64; `offsets[i]:offsets[i+1]` is sequence i."""
    lengths: tuple[int, ...] = ()
    """The lengths as Python numbers; if not given, read from `offsets`, which on a GPU waits for it."""

    def __post_init__(self) -> None:
        if not self.lengths:
            object.__setattr__(self, "lengths", tuple(self.offsets.diff().tolist()))
        if min(self.lengths, default=1) < 1:
            raise ValueError("a sequence has no token; even an empty sentence has its end-of-sentence token")

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> Sequences:
        """Pack lists of token ids."""
        lengths = tuple(len(sequence) for sequence in sequences)
        tokens = torch.tensor([token for sequence in sequences for token in sequence], dtype=torch.int64)
        offsets = torch.tensor([0, *accumulate(lengths)], dtype=torch.int64)
        return cls(tokens, offsets, lengths).to(device)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Sequences:
        """The same sequences on another device."""
        tokens = self.tokens.to(device, non_blocking=non_blocking)
        return Sequences(tokens, self.offsets.to(device, non_blocking=non_blocking), self.lengths)

    def twice(self) -> Sequences:
        """All sequences, and then all of them again."""
        offsets = torch.cat([self.offsets, self.offsets[1:] + self.offsets[-1]])
        return Sequences(self.tokens.repeat(2), offsets, self.lengths * 2)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def longest(self) -> int:
        return max(self.lengths, default=0)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all sequences have one length, so that packed and padded are the same."""
        return len(set(self.lengths)) <= 1

    @cached_property
    def positions_N(self) -> Tensor:
        """Each token's place in its sequence, from 0."""
        starts_N = torch.repeat_interleave(
            self.offsets[:-1], self.offsets.diff(), output_size=len(self.tokens)
        )
        return torch.arange(len(self.tokens), device=self.tokens.device) - starts_N

    @cached_property
    def slots_N(self) -> Tensor:
        """Each token's place in the padded rectangle, its B * L places counted row by row."""
        rows_B = torch.arange(len(self), device=self.tokens.device)
        rows_N = torch.repeat_interleave(rows_B, self.offsets.diff(), output_size=len(self.tokens))
        return rows_N * self.longest + self.positions_N

    @cached_property
    def padding_bias_B11L(self) -> Tensor | None:
        """What attention adds to its scores: -inf where a key is padding, else 0; None without padding."""
        if self.is_uniform:
            return None
        places_L = torch.arange(self.longest, device=self.tokens.device)
        is_padding_BL = places_L >= self.offsets.diff()[:, None]
        bias_BL = torch.zeros(is_padding_BL.shape, device=places_L.device)
        return bias_BL.masked_fill_(is_padding_BL, -inf)[:, None, None]

    @cached_property
    def causal_bias_LL(self) -> Tensor:
        """The same for attention to earlier tokens alone; padding is later than all of them."""
        return torch.full((self.longest, self.longest), -inf, device=self.tokens.device).triu_(1)

    def pad(self, x_ND: Tensor) -> Tensor:
        """From one row per token to the rectangle [B, L, D], zeros after the end of each sequence."""
        slots = len(self) * self.longest
        padded = x_ND if self.is_uniform else _scatter(x_ND, self.slots_N, slots)
        return padded.view(len(self), self.longest, *x_ND.shape[1:])

    def unpad(self, x_BLD: Tensor) -> Tensor:
        """From the rectangle back to one row per token."""
        x_SD = x_BLD.flatten(0, 1)
        return x_SD if self.is_uniform else _gather(x_SD, self.slots_N)


def round_up(x_ND: Tensor) -> Tensor:
    """With zeros in rows after the last, so that their number is a multiple of ROWS."""
    return F.pad(x_ND, (0, 0) * (x_ND.ndim - 1) + (0, -len(x_ND) % ROWS))


def shift_right(target: Sequences, bos: int) -> Sequences:
    """What the decoder reads to predict `target`: each sequence as [bos] + sequence[:-1]."""
    shifted_N = target.tokens.roll(1)
    shifted_N[target.offsets[:-1]] = bos
    return Sequences(shifted_N, target.offsets, target.lengths)


# Scatter and gather are each other's gradients. Autograd would take the gradient of a gather for an
# accumulation, which is several times slower than the copy that distinct slots allow.


class _Scatter(torch.autograd.Function):
    """Put row i of x at slots[i] of `rows` rows of zeros."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, slots_N: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(slots_N)
        return x_ND.new_zeros(rows, *x_ND.shape[1:]).index_copy_(0, slots_N, x_ND)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (slots_N,) = ctx.saved_tensors
        return _gather(gradient, slots_N), None, None


class _Gather(torch.autograd.Function):
    """Take the rows at `slots`, which are all different."""

    @staticmethod
    def forward(ctx: Any, x_SD: Tensor, slots_N: Tensor) -> Tensor:
        ctx.save_for_backward(slots_N)
        ctx.rows = len(x_SD)
        return x_SD.index_select(0, slots_N)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (slots_N,) = ctx.saved_tensors
        return _scatter(gradient, slots_N, ctx.rows), None


_scatter: Callable[[Tensor, Tensor, int], Tensor] = _Scatter.apply
_gather: Callable[[Tensor, Tensor], Tensor] = _Gather.apply
