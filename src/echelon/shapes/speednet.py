"""What the small fast network for CIFAR-10 is before it exists; `echelon.models.speednet` builds it.

A fixed 2x2 convolution that whitens the colours of small patches, three groups of two 3x3 convolutions of which each
first one is followed by a pooling, a pooling over what is left, and one matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

from echelon.shapes.resnet import LayerShape

WHITENED = 24
"""Channels after the first layer: the 12 directions of a 2x2 patch of three colours, and their opposites."""


@dataclass(frozen=True)
class SpeedNetShape:
    """Everything that decides which parameters the network has."""

    width: int = 64
    """Channels of the first group; the others have four times as many."""
    classes: int = 10
    pixels: int = 32

    @property
    def widths(self) -> tuple[int, int, int]:
        return (self.width, 4 * self.width, 4 * self.width)


def layers(shape: SpeedNetShape) -> list[LayerShape]:
    """Every layer with parameters, in the order of the module's `named_parameters()`."""
    side, channels = shape.pixels - 1, WHITENED
    flops = 2 * 12 * WHITENED * side**2
    result = [LayerShape("whiten", (("whiten.bias", (WHITENED, 1, 1)),), "whiten", flops)]
    for number, width in enumerate(shape.widths):
        for place, size in ((1, channels), (2, width)):
            name = f"groups.{number}.conv{place}"
            flops = 2 * 9 * size * width * side**2
            weight = ((f"{name}.weight", (width, size, 3, 3)),)
            result.append(LayerShape(name, weight, f"groups.{number}", flops))
            norm = f"groups.{number}.norm{place}"
            result.append(LayerShape(norm, ((f"{norm}.bias", (width,)),), f"groups.{number}", 0))
            side = side // 2 if place == 1 else side
        channels = width
    output = (("output.weight", (shape.classes, channels)),)
    return [*result, LayerShape("output", output, "output", 2 * channels * shape.classes)]
