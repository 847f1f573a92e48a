"""A small network that learns CIFAR-10 fast, in the form that the published speed runs arrived at.

What makes it fast: a first layer that is computed from the data and fixed, few and wide convolutions that begin as
identities, pooling in place of strides, norms without a scale, and logits that start small.

N  pictures    C  channels    H, W  height and width    K  classes    P  patches
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from echelon.models.batch_norm import BatchNorm
from echelon.shapes.speednet import WHITENED, SpeedNetShape

OUTPUT_SCALE = 1 / 9
_SMALLEST_VARIANCE = 5e-4


class SpeedNet(nn.Module):
    """Built from its shape; call `whiten.fit` with training pictures before training."""

    def __init__(self, shape: SpeedNetShape, *, momentum: float = 0.4) -> None:
        super().__init__()
        self.whiten = Whitening()
        entering = WHITENED
        groups: list[nn.Module] = []
        for width in shape.widths:
            groups.append(ConvGroup(entering, width, momentum))
            entering = width
        self.groups = nn.Sequential(*groups)
        self.output = nn.Linear(entering, shape.classes, bias=False)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        """Logits [N, K] of normalised pictures."""
        x_NCHW = self.groups(F.gelu(self.whiten(x_NCHW)))
        logits_NK: Tensor = self.output(x_NCHW.amax((2, 3)))
        return logits_NK * OUTPUT_SCALE


class Whitening(nn.Module):
    """A 2x2 convolution onto the principal directions of the training pictures' patches, each scaled to variance 1."""

    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(WHITENED, 3, 2, 2))
        # Not a vector: it learns at the rate of the convolutions, and is decayed with them, as in the published speed
        # runs, while the norms' biases may learn faster.
        self.bias = nn.Parameter(torch.zeros(WHITENED, 1, 1))

    @torch.no_grad()
    def fit(self, x_NCHW: Tensor) -> None:
        """Compute the directions from normalised pictures."""
        patches_NP = F.unfold(x_NCHW.float(), 2)
        patches_PD = patches_NP.transpose(1, 2).reshape(-1, WHITENED // 2).double()
        covariance_DD = patches_PD.T @ patches_PD / len(patches_PD)
        variances_D, directions_DD = torch.linalg.eigh(covariance_DD)
        scaled_DD = directions_DD.T / torch.sqrt(variances_D + _SMALLEST_VARIANCE).unsqueeze(1)
        both = torch.cat([scaled_DD, -scaled_DD]).float()
        self.weight.copy_(both.view(WHITENED, 3, 2, 2))

    def forward(self, x_NCHW: Tensor) -> Tensor:
        return F.conv2d(x_NCHW, self.weight, self.bias.flatten())


class ConvGroup(nn.Module):
    """Two convolutions; the picture is halved after the first."""

    def __init__(self, channels: int, width: int, momentum: float) -> None:
        super().__init__()
        self.conv1 = _identity_convolution(channels, width)
        self.norm1 = BatchNorm(width, momentum=momentum, eps=1e-12, has_weight=False)
        self.conv2 = _identity_convolution(width, width)
        self.norm2 = BatchNorm(width, momentum=momentum, eps=1e-12, has_weight=False)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        x_NCHW = F.gelu(self.norm1(F.max_pool2d(self.conv1(x_NCHW), 2)))
        return F.gelu(self.norm2(self.conv2(x_NCHW)))


def _identity_convolution(channels: int, outer: int) -> nn.Conv2d:
    """A convolution whose first channels begin as copies of its input."""
    convolution = nn.Conv2d(channels, outer, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight[: min(channels, outer)])
    return convolution
