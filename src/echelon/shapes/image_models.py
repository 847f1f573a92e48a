"""A network for images before it exists, whichever of them it is: parameters, bytes and FLOPs, without torch."""

from __future__ import annotations

from math import prod

from echelon.shapes import resnet, speednet
from echelon.shapes.resnet import FLOAT32_BYTES, LayerShape, ResNetShape
from echelon.shapes.speednet import SpeedNetShape

ImageShape = ResNetShape | SpeedNetShape


def layers(shape: ImageShape) -> list[LayerShape]:
    """Every layer with parameters, in the order of the module's `named_parameters()`."""
    return resnet.layers(shape) if isinstance(shape, ResNetShape) else speednet.layers(shape)


def parameter_count(shape: ImageShape) -> int:
    """Number of trained numbers."""
    return sum(layer.count for layer in layers(shape))


def matrices(shape: ImageShape) -> tuple[tuple[int, int], ...]:
    """Rows and columns of those parameters that are matrices; convolutions are, of output channels by all else."""
    sizes = [size for layer in layers(shape) for _, size in layer.parameters]
    return tuple((size[0], prod(size[1:])) for size in sizes if prod(size[1:]) > 1)


def gradient_bytes(shape: ImageShape) -> int:
    """Bytes of one full gradient in float32."""
    return FLOAT32_BYTES * parameter_count(shape)


def parameters_by_part(shape: ImageShape) -> dict[str, int]:
    """Parameters of each part."""
    counts: dict[str, int] = {}
    for layer in layers(shape):
        counts[layer.part] = counts.get(layer.part, 0) + layer.count
    return counts


def training_flops(shape: ImageShape, pictures: int) -> int:
    """FLOPs of forward and backward of a number of images."""
    return 3 * pictures * sum(layer.flops for layer in layers(shape))
