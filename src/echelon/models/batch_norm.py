"""Batch normalisation whose statistics belong to a slot, so that it does not matter which worker computes it.

N  pictures    C  channels    H, W  height and width
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BatchNorm(nn.Module):
    """Normalises over the pictures of a slot while training, by the running statistics otherwise.

    Weight, bias and statistics are float32 whatever the pictures are. Forward leaves the slot's statistics in
    `measured_2C`; who trains combines those of all slots and brings `running_mean` and `running_var` up to date.
    """

    running_mean: Tensor
    running_var: Tensor
    measured_2C: Tensor

    def __init__(
        self, channels: int, *, momentum: float = 0.1, eps: float = 1e-5, has_weight: bool = True
    ) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels)) if has_weight else None
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("measured_2C", torch.zeros(2, channels), persistent=False)

    def forward(self, x_NCHW: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(
                x_NCHW, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        # A momentum of 1 makes torch's running statistics those of this batch alone.
        mean_C, var_C = self.measured_2C
        return F.batch_norm(x_NCHW, mean_C, var_C, self.weight, self.bias, True, 1.0, self.eps)
