"""Floats added up as whole numbers: in C++ if it can be compiled, in plain PyTorch otherwise, with the same bits."""

from __future__ import annotations

import contextlib
from ctypes import c_float, c_long, c_void_p
from typing import Protocol

import torch
from torch import Tensor

from echelon.models.kernels.build import KernelsUnavailableError, load_library

_MAGNITUDE = 0x7FFFFFFF
"""All bits of a float but its sign: as whole numbers they are in the order of the magnitudes."""


class FixedPoint(Protocol):
    """How floats become whole numbers and come back. All tensors are contiguous, and on one device."""

    def add(self, numbers: Tensor, sums: Tensor, largest: Tensor, scale: float, limit: float) -> None:
        """Add `numbers * scale`, rounded to the nearest even and within `limit`, to the int32 `sums`.

        `largest`, one int32, becomes the largest of itself and the bits of all |numbers|.
        """
        ...

    def read(self, buffer: Tensor, factor: float) -> None:
        """Turn the int32 numbers in the float32 `buffer` into floats, multiplied by `factor`, in their place."""
        ...


class CompiledFixedPoint:
    """One pass over memory. KernelsUnavailableError if this machine can compile nothing."""

    def __init__(self) -> None:
        library = load_library()
        self._add, self._read = library.add_fixed_point, library.read_fixed_point
        self._add.argtypes = [c_void_p, c_void_p, c_void_p, c_long, c_float, c_float]
        self._read.argtypes = [c_void_p, c_long, c_float]

    def add(self, numbers: Tensor, sums: Tensor, largest: Tensor, scale: float, limit: float) -> None:
        pointers = numbers.data_ptr(), sums.data_ptr(), largest.data_ptr()
        self._add(*pointers, numbers.numel(), scale, limit)

    def read(self, buffer: Tensor, factor: float) -> None:
        self._read(buffer.data_ptr(), len(buffer), factor)


class PlainFixedPoint:
    """A pass for each operation, on any device."""

    def add(self, numbers: Tensor, sums: Tensor, largest: Tensor, scale: float, limit: float) -> None:
        numbers = numbers.view(-1)
        magnitude = numbers.view(torch.int32).bitwise_and(_MAGNITUDE).amax()
        torch.maximum(largest, magnitude, out=largest)
        sums += (numbers * scale).round_().clamp_(-limit, limit).to(torch.int32)

    def read(self, buffer: Tensor, factor: float) -> None:
        buffer.copy_(buffer.view(torch.int32).to(torch.float32).mul_(factor))


def choose_fixed_point(device: torch.device) -> FixedPoint:
    """The compiled one on a CPU, if it can be had. Which one it is makes no difference to the result."""
    if device.type == "cpu":
        with contextlib.suppress(KernelsUnavailableError):
            return CompiledFixedPoint()
    return PlainFixedPoint()
