"""A network for images before it exists, whichever of them it is: parameters, bytes and FLOPs, without torch."""

from __future__ import annotations

from echelon.shapes import resnet, speednet
from echelon.shapes.resnet import LayerShape, ResNetShape
from echelon.shapes.speednet import SpeedNetShape

ImageShape = ResNetShape | SpeedNetShape


def layers(shape: ImageShape) -> list[LayerShape]:
    """Every layer with parameters, in the order of the module's `named_parameters()`."""
    return resnet.layers(shape) if isinstance(shape, ResNetShape) else speednet.layers(shape)


def parameter_count(shape: ImageShape) -> int:
    """Number of trained numbers."""
    return sum(layer.count for layer in layers(shape))


def parameter_sizes(shape: ImageShape) -> dict[str, tuple[int, ...]]:
    """The size of every parameter by its name."""
    return {name: size for layer in layers(shape) for name, size in layer.parameters}


def parameters_by_part(shape: ImageShape) -> dict[str, int]:
    """Parameters of each part."""
    counts: dict[str, int] = {}
    for layer in layers(shape):
        counts[layer.part] = counts.get(layer.part, 0) + layer.count
    return counts


def training_flops(shape: ImageShape, pictures: int) -> int:
    """FLOPs of forward and backward of a number of images."""
    return 3 * pictures * sum(layer.flops for layer in layers(shape))
