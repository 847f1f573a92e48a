"""Segmentation of pictures: which pixels are a bright disc? Network, loss and metric are named by import paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import echelon
from echelon.models.batch_norm import BatchNorm

PIXELS = 24
Example = tuple[Tensor, Tensor]


class Discs(echelon.OwnTask):
    """Drawn pictures: an example is made from its number, the same everywhere."""

    def __init__(self, data: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self.sizes = {"train": data.get("pictures", 240), "valid": 36, "test": 36}

    def examples(self, split: str) -> Sequence[Example]:
        first = {"train": 0, "valid": 10**6, "test": 2 * 10**6}[split]
        return [draw(first + number) for number in range(self.sizes[split])]

    def batch(self, examples: list[Example], random: torch.Generator) -> tuple[Tensor, Tensor]:
        pictures, masks = (torch.stack(column) for column in zip(*examples, strict=True))
        mirrored = torch.rand((), generator=random) < 0.5  # the augmentation
        return (pictures.flip(3), masks.flip(3)) if mirrored else (pictures, masks)


def draw(number: int) -> Example:
    random = torch.Generator().manual_seed(number)
    (x, y), radius = torch.rand(2, generator=random) * PIXELS, 3 + 5 * torch.rand((), generator=random)
    rows, columns = torch.meshgrid(torch.arange(PIXELS), torch.arange(PIXELS), indexing="ij")
    mask = (((rows - y) ** 2 + (columns - x) ** 2) < radius**2).float()[None]
    return mask + 0.5 * torch.randn(1, PIXELS, PIXELS, generator=random), mask


def make_net(width: int = 8) -> nn.Module:
    """`model.build`, which gets the other keys of the table `model`."""
    first = nn.Conv2d(1, width, 5, padding=2, bias=False)  # a bias before BatchNorm has no gradient but noise
    second = nn.Conv2d(width, width, 5, padding=2, bias=False)
    norms, last = (BatchNorm(width), BatchNorm(width)), nn.Conv2d(width, 1, 1)
    return nn.Sequential(first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU(), last)


def pixel_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """`train.loss`: the sum over the pictures of the mean over their pixels."""
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1], reduction="sum") / PIXELS**2


def overlap(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """`evaluate.measure`: intersection over union, in percent."""
    found, meant = model(batch[0]) > 0, batch[1] > 0
    return {"overlap": 100.0 * (found & meant).sum((1, 2, 3)) / (found | meant).sum((1, 2, 3)).clamp(min=1)}
