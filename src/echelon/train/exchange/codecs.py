"""Fewer bytes for the same numbers: how float32 vectors look on the wire.

The size is fixed: N numbers always take the same number of bytes. Rows are encoded each by itself, since they go to
different workers.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor

Wire = Literal["float32", "bf16", "fp16", "int8"]
_BLOCK = 512
"""Numbers that share a scale: 4 bytes for 512 is little, and one large number spoils few small ones."""


class Codec(Protocol):
    """Rows of float32 to rows of bytes and back."""

    multiple: int
    """Rows must be a multiple of this long."""
    is_lossy: bool
    """Whether so much is lost that the rest must be kept and sent later."""

    def encode(self, numbers_RN: Tensor) -> Tensor: ...

    def decode(self, bytes_RB: Tensor) -> Tensor: ...


class Unchanged:
    """All of them, of any format of 4 bytes."""

    multiple = 1
    is_lossy = False

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def encode(self, numbers_RN: Tensor) -> Tensor:
        return numbers_RN.contiguous().view(torch.uint8)

    def decode(self, bytes_RB: Tensor) -> Tensor:
        return bytes_RB.view(self._dtype)


class BFloat16:
    """Half the bytes: float32's range with 8 bits of precision."""

    multiple = 1
    is_lossy = False

    def encode(self, numbers_RN: Tensor) -> Tensor:
        return numbers_RN.to(torch.bfloat16).view(torch.uint8)

    def decode(self, bytes_RB: Tensor) -> Tensor:
        return bytes_RB.view(torch.bfloat16).float()


class Float16:
    """Half the bytes with 11 bits of precision, each block scaled into float16's narrow range."""

    multiple = _BLOCK
    is_lossy = False

    def encode(self, numbers_RN: Tensor) -> Tensor:
        scales, blocks = _scaled(numbers_RN, 1.0)
        return _with_scales(scales, blocks.to(torch.float16))

    def decode(self, bytes_RB: Tensor) -> Tensor:
        return _unscaled(bytes_RB, torch.float16)


class Int8:
    """A quarter of the bytes, 254 steps from the smallest to the largest of a block."""

    multiple = _BLOCK
    is_lossy = True

    def encode(self, numbers_RN: Tensor) -> Tensor:
        scales, blocks = _scaled(numbers_RN, 127.0)
        return _with_scales(scales, blocks.round_().to(torch.int8))

    def decode(self, bytes_RB: Tensor) -> Tensor:
        return _unscaled(bytes_RB, torch.int8)


def build_codec(wire: Wire) -> Codec:
    match wire:
        case "float32":
            return Unchanged(torch.float32)
        case "bf16":
            return BFloat16()
        case "fp16":
            return Float16()
        case "int8":
            return Int8()


def _scaled(numbers_RN: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """A scale for each block, and the blocks divided by it; a block that is not finite has a scale that is not."""
    blocks_RKB = numbers_RN.reshape(len(numbers_RN), -1, _BLOCK)
    scales_RK = blocks_RKB.abs().amax(dim=2).div_(largest)
    divisors_RK = torch.where(scales_RK > 0, scales_RK, torch.ones_like(scales_RK))
    return scales_RK, blocks_RKB / divisors_RK.unsqueeze(2)


def _with_scales(scales_RK: Tensor, blocks_RKB: Tensor) -> Tensor:
    rows = len(scales_RK)
    return torch.cat([scales_RK.view(torch.uint8), blocks_RKB.reshape(rows, -1).view(torch.uint8)], dim=1)


def _unscaled(bytes_RB: Tensor, dtype: torch.dtype) -> Tensor:
    rows, width = bytes_RB.shape
    num_blocks = width // (4 + _BLOCK * dtype.itemsize)
    scales_RK = bytes_RB[:, : 4 * num_blocks].contiguous().view(torch.float32)
    blocks_RKB = bytes_RB[:, 4 * num_blocks :].contiguous().view(dtype).reshape(rows, num_blocks, _BLOCK)
    return blocks_RKB.float().mul_(scales_RK.unsqueeze(2)).reshape(rows, -1)
