"""ResNets: for ImageNet in the form called v1.5, and the thin ones of the first paper for 32x32 pictures.

Names of parameters are torchvision's. The strides of bottleneck blocks are on their 3x3 convolution (v1.5).

N  pictures    C  channels    H, W  height and width    K  classes
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from echelon.models.batch_norm import BatchNorm
from echelon.shapes.resnet import ResNetShape, bottleneck_width


class ResNet(nn.Module):
    """Built from its shape; `echelon.shapes.resnet` counts the same parameters without torch."""

    def __init__(self, shape: ResNetShape, *, momentum: float = 0.1, zero_init: bool = False) -> None:
        super().__init__()
        self.has_pooled_stem = shape.stem == "imagenet"
        kernel, stride = (7, 2) if self.has_pooled_stem else (3, 1)
        self.conv1 = _convolution(3, shape.width, kernel, stride)
        self.bn1 = BatchNorm(shape.width, momentum=momentum)
        self.stages: list[nn.Sequential] = []
        channels = shape.width
        for stage, count in enumerate(shape.blocks):
            inner = shape.width * 2**stage
            blocks: list[nn.Module] = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                block = Block(shape, channels, inner, stride, momentum)
                channels = block.outer
                blocks.append(block)
            self.stages.append(nn.Sequential(*blocks))
            self.add_module(f"layer{stage + 1}", self.stages[-1])
        self.fc = nn.Linear(channels, shape.classes)
        self._initialise(zero_init)

    def _initialise(self, zero_init: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if zero_init and isinstance(module, Block):
                assert module.last_norm.weight is not None
                nn.init.zeros_(module.last_norm.weight)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Logits [N, K] of normalised pictures."""
        x_NCHW = F.relu(self.bn1(self.conv1(x_NCHW)), inplace=True)
        if self.has_pooled_stem:
            x_NCHW = F.max_pool2d(x_NCHW, 3, 2, 1)
        for stage in self.stages:
            x_NCHW = stage(x_NCHW)
        logits_NK: Tensor = self.fc(x_NCHW.mean((2, 3)))
        return logits_NK


class Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1, beside a shortcut."""

    def __init__(self, shape: ResNetShape, channels: int, inner: int, stride: int, momentum: float) -> None:
        super().__init__()
        is_bottleneck = shape.block == "bottleneck"
        self.outer = 4 * inner if is_bottleneck else inner
        self.stride = stride
        middle, groups = bottleneck_width(shape, inner), shape.groups if is_bottleneck else 1
        sizes = [(middle, 1, 1), (middle, 3, stride), (self.outer, 1, 1)]
        if not is_bottleneck:
            sizes = [(inner, 3, stride), (inner, 3, 1)]
        self._num_convolutions = len(sizes)
        entering = channels
        for number, (width, kernel, step) in enumerate(sizes, start=1):
            self.add_module(f"conv{number}", _convolution(entering, width, kernel, step, groups))
            self.add_module(f"bn{number}", BatchNorm(width, momentum=momentum))
            entering = width
        self.downsample: nn.Sequential | None = None
        if shape.has_projections and (stride != 1 or channels != self.outer):
            self.downsample = nn.Sequential(
                _convolution(channels, self.outer, 1, stride), BatchNorm(self.outer, momentum=momentum)
            )

    @property
    def last_norm(self) -> BatchNorm:
        return self.layers[-1][1]

    def forward(self, x_NCHW: Tensor) -> Tensor:
        out_NCHW = x_NCHW
        *first, (convolution, norm) = self.layers
        for earlier, earlier_norm in first:
            out_NCHW = F.relu(earlier_norm(earlier(out_NCHW)), inplace=True)
        out_NCHW = norm(convolution(out_NCHW))
        return F.relu(out_NCHW + self._shortcut(x_NCHW), inplace=True)

    @property
    def layers(self) -> list[tuple[nn.Conv2d, BatchNorm]]:
        """The convolutions in order, each with its norm."""
        parts: dict[str, Any] = self._modules
        return [(parts[f"conv{n}"], parts[f"bn{n}"]) for n in range(1, self._num_convolutions + 1)]

    def _shortcut(self, x_NCHW: Tensor) -> Tensor:
        if self.downsample is not None:
            projected: Tensor = self.downsample(x_NCHW)
            return projected
        missing = self.outer - x_NCHW.shape[1]
        if self.stride == 1 and not missing:
            return x_NCHW
        # Without parameters: every other pixel, and zeros for the channels that are new.
        return F.pad(x_NCHW[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, missing))


def _convolution(channels: int, outer: int, kernel: int, stride: int, groups: int = 1) -> nn.Conv2d:
    """The groups are of a kernel of 3x3."""
    groups = groups if kernel == 3 else 1
    return nn.Conv2d(channels, outer, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
