"""Dropout whose random numbers are a function of a seed and of each number's place.

On a CPU torch's own spends a sixth of a training step drawing random numbers. Here one word of 64 bits decides on four
numbers, and any word can be computed alone: the C++ kernels (kernels/dropout.h) drop the same numbers without a mask
in memory, so that training is the same with and without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LEVELS = 1 << 16
"""A share is rounded to one of this many parts: each number takes 16 random bits."""

_WORD = 1 << 64


@dataclass(frozen=True)
class Drop:
    """One use of dropout: how many of 65,536 numbers fall, and the seed that decides which."""

    dropped_levels: int = 0
    seed: int = 0

    @property
    def scale(self) -> float:
        """The factor for the others, which keeps the mean."""
        return LEVELS / (LEVELS - self.dropped_levels)


class Dropout(nn.Module):
    """Zeroes a share of the numbers while training, and scales up the rest so that the mean stays."""

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0 <= share < 1:
            raise ValueError(f"a dropout of {share} is not in 0 <= share < 1")
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        return _drop_on_cpu(x, self.draw()) if x.device.type == "cpu" else F.dropout(x, self.share)

    def draw(self) -> Drop:
        """The next use: takes one number from torch's generator, if anything is dropped at all."""
        if not self.training or self.share == 0:
            return Drop()
        dropped_levels = min(max(round(self.share * LEVELS), 1), LEVELS - 1)  # some, and never all
        return Drop(dropped_levels, int(torch.empty((), dtype=torch.int64).random_()))

    def extra_repr(self) -> str:
        return f"{self.share}"


class _DropOnCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, drop: Drop) -> Tensor:
        is_kept = draw_kept(x, drop)
        ctx.save_for_backward(is_kept)
        ctx.scale = drop.scale
        return (x * is_kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (is_kept,) = ctx.saved_tensors
        return (gradient * is_kept).mul_(ctx.scale), None


_drop_on_cpu: Callable[[Tensor, Drop], Tensor] = _DropOnCpu.apply


def draw_kept(x: Tensor, drop: Drop) -> Tensor:
    """Ones and zeros in the shape and dtype of x; each row, along its last dimension, begins with a new word."""
    *rows, width = x.shape
    words_in_row = (width + 3) // 4
    words = random_words(drop.seed, x.numel() // width * words_in_row if width else 0)
    bits = words.view(torch.int16).view(*rows, 4 * words_in_row)[..., :width]
    is_kept = torch.empty(x.shape, dtype=x.dtype)
    return torch.ge(bits, drop.dropped_levels - LEVELS // 2, out=is_kept)


def random_words(seed: int, count: int) -> Tensor:
    """The first `count` words of SplitMix64 from `seed`, as int64."""
    z = torch.arange(1, count + 1).mul_(_signed(0x9E3779B97F4A7C15)).add_(_signed(seed))
    z = _xor_shifted(z, 30).mul_(_signed(0xBF58476D1CE4E5B9))
    z = _xor_shifted(z, 27).mul_(_signed(0x94D049BB133111EB))
    return _xor_shifted(z, 31)


def _xor_shifted(z: Tensor, bits: int) -> Tensor:
    """z ^ (z >> bits) with zeros shifted in: torch's own shift copies the sign."""
    return z.bitwise_xor_((z >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _signed(word: int) -> int:
    """The number of the same 64 bits that torch can hold."""
    return (word + _WORD // 2) % _WORD - _WORD // 2
