"""The sum of gradients that does not depend on the order of adding.

Floats round after each addition, so another order gives other bits. Whole numbers do not round. Each slot's gradient is
rounded once, to whole numbers on a scale of its parameter's, a power of two; from then on nothing is lost, whichever
worker computed the slot and whichever way the sums take. They lie in the flat buffer itself: int32 until the workers
have been summed, float32 from then until the next step.

A scale must be known before the first gradient of a step is. It follows from the largest gradients of earlier steps,
with room for what is larger. Each worker has a row at the end of the buffer, which the others leave zero, for the
largest that it has met. So all workers see alike if a gradient was too large for its scale, and compute the step again
on scales that fit; the same happens in the first step, in which no scale is known.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from echelon.models.kernels.fixed_point import FixedPoint
from echelon.train.exchange.ownership import overlap
from echelon.train.flat import FlatParameters, Slice

_SUM_BITS = 30
"""What a sum over all slots may take of an int32's 31 bits."""
_GROWTH_BITS = 5
"""A slot's gradient may have up to 2^5 times the magnitude of the largest lately."""
_FADING = 1 / 8
"""What a step leaves of the largest gradient before it."""
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -126, 126
"""Powers of two that are float32 numbers, and whose inverses are."""


@dataclass(frozen=True)
class Scale:
    """How a parameter's gradient becomes whole numbers."""

    factor: float
    """What it is multiplied by: a power of two, or zero if no scale is known."""
    capacity: float
    """The largest gradient of a slot that fits."""


UNKNOWN = Scale(0.0, 0.0)
"""Only zeros fit."""


def limit_bits(num_slots: int) -> int:
    """The bits that each of `num_slots` slots may take, so that their sum can never overflow."""
    return _SUM_BITS - (num_slots - 1).bit_length()


def choose_scale(largest: float, num_slots: int) -> Scale:
    """The scale for gradients whose largest lately was this; 0 if none was met yet."""
    if largest == 0.0:
        return UNKNOWN
    bits = limit_bits(num_slots)
    exponent = bits - math.frexp(largest)[1] - _GROWTH_BITS
    exponent = min(max(exponent, _SMALLEST_EXPONENT), _LARGEST_EXPONENT)
    return Scale(2.0**exponent, 2.0 ** (bits - exponent))


class Sum(enum.Enum):
    """What has become of a step's sum."""

    WHOLE = "whole"
    NOT_FINITE = "not finite"
    TOO_LARGE = "too large"
    """For the scales: the step must be computed again, on those that are there now."""


class WholeNumbers:
    """Takes each parameter's gradient as soon as a slot's backward has made it, and adds it to the flat buffer."""

    def __init__(self, flat: FlatParameters, fixed_point: FixedPoint) -> None:
        self._flat, self._fixed_point = flat, fixed_point
        self._limit = 2.0 ** limit_bits(flat.num_slots)
        self.largest = torch.zeros(len(flat.slices))
        """Each parameter's largest gradient of a slot in the last steps."""
        self._scales = [UNKNOWN] * len(flat.slices)
        self._sums = [Tensor()] * len(flat.slices)
        self._read_here = [(number, slice(s.start, s.end)) for number, s in enumerate(flat.slices)]
        self._met = Tensor()

    def attach(self, rank: int, rows: Tensor) -> None:
        """Add into the flat buffer as it lies now; `rows` is its end, where each worker has a number per parameter."""
        self._sums = [self._flat.reduced[s.start : s.end].view(torch.int32) for s in self._flat.slices]
        self._rows = rows.view(torch.int32)
        for number, s in enumerate(self._flat.slices):
            self._flat.on_gradient(s, self._taker(s, number, self._rows[rank, number]))

    def keep(self, spans: Sequence[slice]) -> None:
        """Read only these sums: what others need stays in whole numbers."""
        self._read_here = [
            (number, part)
            for number, s in enumerate(self._flat.slices)
            for span in spans
            if (part := overlap(slice(s.start, s.end), span)).start < part.stop
        ]

    def _taker(self, s: Slice, number: int, largest: Tensor) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            scale = self._scales[number]
            self._fixed_point.add(gradient, self._sums[number], largest, scale.factor, self._limit)

        return take

    def choose_scales(self) -> None:
        """Before a step's first gradient: the scales that all workers have."""
        num_slots = self._flat.num_slots
        self._scales = [choose_scale(largest, num_slots) for largest in self.largest.tolist()]

    def read(self) -> Sum:
        """Make the sums over all workers floats again, those that are kept here, and note how large gradients were."""
        met = self._rows.amax(0).view(torch.float32).cpu()
        magnitudes = met.tolist()
        if not all(map(math.isfinite, magnitudes)):
            self._flat.gradients.fill_(math.nan)
            return Sum.NOT_FINITE
        fits = all(m <= scale.capacity for m, scale in zip(magnitudes, self._scales, strict=True))
        # Another tensor each time: a save may still be copying the last one.
        self.largest = torch.maximum(met, self.largest * _FADING)
        if not fits:
            self.choose_scales()
            return Sum.TOO_LARGE
        for number, part in self._read_here:
            factor = self._scales[number].factor
            self._fixed_point.read(self._flat.gradients[part], 1 / factor if factor else 0.0)
        return Sum.WHOLE
