"""What a ResNet is before it exists: its parameters, bytes and FLOPs, without torch.

Names are torchvision's. Two families: for ImageNet (a 7x7 stem, four stages), and the thin ones of the first paper for
CIFAR-10 (a 3x3 stem, three stages, shortcuts without parameters).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ResNetShape:
    """Everything that decides which parameters a ResNet has."""

    blocks: tuple[int, ...]
    """Blocks in each stage; every stage after the first halves the image."""
    width: int = 64
    """Channels of the first stage; each later one has twice as many."""
    block: Literal["basic", "bottleneck"] = "basic"
    stem: Literal["imagenet", "cifar"] = "imagenet"
    """A 7x7 convolution and a pooling, each halving the image; or one 3x3 convolution."""
    has_projections: bool = True
    """Whether shortcuts that change the shape have a 1x1 convolution, or pad with zeros."""
    classes: int = 1000
    pixels: int = 224
    """Height and width of the image."""
    groups: int = 1
    """Groups of a bottleneck's 3x3 convolution; each sees only its own channels (ResNeXt)."""
    group_width: int = 64
    """Channels of such a group in the first stage, if `width` is 64; 128 makes a wide ResNet."""


PRESETS: dict[str, ResNetShape] = {
    "resnet18": ResNetShape((2, 2, 2, 2)),
    "resnet34": ResNetShape((3, 4, 6, 3)),
    "resnet50": ResNetShape((3, 4, 6, 3), block="bottleneck"),
    "resnet101": ResNetShape((3, 4, 23, 3), block="bottleneck"),
    "resnet152": ResNetShape((3, 8, 36, 3), block="bottleneck"),
    "resnet26": ResNetShape((2, 2, 2, 2), block="bottleneck"),
    "wide_resnet50_2": ResNetShape((3, 4, 6, 3), block="bottleneck", group_width=128),
    "wide_resnet101_2": ResNetShape((3, 4, 23, 3), block="bottleneck", group_width=128),
    "resnext50_32x4d": ResNetShape((3, 4, 6, 3), block="bottleneck", groups=32, group_width=4),
    "resnext101_32x8d": ResNetShape((3, 4, 23, 3), block="bottleneck", groups=32, group_width=8),
    **{
        f"resnet{6 * depth + 2}": ResNetShape((depth,) * 3, 16, "basic", "cifar", False, 10, 32)
        for depth in (3, 5, 7, 9, 18)
    },
}


@dataclass(frozen=True)
class LayerShape:
    """One convolution, norm or linear layer."""

    name: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and shape of each tensor."""
    part: str
    """`stem`, `layer1` ... or `fc`."""
    flops: int
    """FLOPs of the forward pass for one image; a multiply-add counts as 2."""

    @property
    def count(self) -> int:
        return sum(prod(shape) for _, shape in self.parameters)


def layers(shape: ResNetShape) -> list[LayerShape]:
    """Every layer with parameters, in the order of the module's `named_parameters()`."""
    stem_kernel, side = (7, shape.pixels // 2) if shape.stem == "imagenet" else (3, shape.pixels)
    result = _Convolution(3, shape.width, stem_kernel, side).layers("conv1", "bn1")
    side = side // 2 if shape.stem == "imagenet" else side
    channels, expansion = shape.width, 4 if shape.block == "bottleneck" else 1
    for stage, count in enumerate(shape.blocks):
        inner = shape.width * 2**stage
        side = side // 2 if stage else side
        for block in range(count):
            entering = side * 2 if stage and not block else side
            name = f"layer{stage + 1}.{block}."
            result += _block(shape, name, channels, inner, entering=entering, side=side)
            channels = inner * expansion
    fc = (("fc.weight", (shape.classes, channels)), ("fc.bias", (shape.classes,)))
    return [*result, LayerShape("fc", fc, "fc", 2 * channels * shape.classes)]


def _block(
    shape: ResNetShape, name: str, channels: int, inner: int, *, entering: int, side: int
) -> list[LayerShape]:
    """`entering` is the image's side before the block, `side` after it."""
    if shape.block == "basic":
        outer = inner
        convolutions = [_Convolution(channels, inner, 3, side), _Convolution(inner, inner, 3, side)]
    else:
        outer = 4 * inner
        middle = bottleneck_width(shape, inner)
        convolutions = [
            _Convolution(channels, middle, 1, entering),
            # It is this one that halves the image.
            _Convolution(middle // shape.groups, middle, 3, side),
            _Convolution(middle, outer, 1, side),
        ]
    result: list[LayerShape] = []
    for number, convolution in enumerate(convolutions, start=1):
        result += convolution.layers(f"{name}conv{number}", f"{name}bn{number}")
    if shape.has_projections and (channels != outer or entering != side):
        shortcut = _Convolution(channels, outer, 1, side)
        result += shortcut.layers(f"{name}downsample.0", f"{name}downsample.1")
    return result


def bottleneck_width(shape: ResNetShape, inner: int) -> int:
    """Channels of a bottleneck's 3x3 convolution."""
    return inner * shape.group_width // 64 * shape.groups


@dataclass(frozen=True)
class _Convolution:
    """A convolution with its norm."""

    channels: int
    """Channels that each of its filters sees."""
    outer: int
    kernel: int
    side: int
    """The side of its output."""

    def layers(self, name: str, norm: str) -> list[LayerShape]:
        part = name.split(".", maxsplit=1)[0] if "." in name else "stem"
        size = (self.outer, self.channels, self.kernel, self.kernel)
        vectors = tuple((f"{norm}.{kind}", (self.outer,)) for kind in ("weight", "bias"))
        return [
            LayerShape(name, ((f"{name}.weight", size),), part, 2 * prod(size) * self.side**2),
            LayerShape(norm, vectors, part, 0),
        ]
