"""ResNets as their papers draw them, with torch's own layers: what ours are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Plan:
    """What tells one ResNet from another."""

    blocks: tuple[int, int, int, int]
    is_bottleneck: bool
    groups: int = 1
    base: int = 64
    width: int = 64
    has_small_stem: bool = False


SMALL = "resnet18 of 8 channels with a small stem"
PLANS = {
    "resnet18": Plan((2, 2, 2, 2), False),
    "resnet34": Plan((3, 4, 6, 3), False),
    "resnet50": Plan((3, 4, 6, 3), True),
    "resnet101": Plan((3, 4, 23, 3), True),
    "resnet152": Plan((3, 8, 36, 3), True),
    "resnet26": Plan((2, 2, 2, 2), True),
    "wide_resnet50_2": Plan((3, 4, 6, 3), True, base=128),
    "resnext50_32x4d": Plan((3, 4, 6, 3), True, groups=32, base=4),
    SMALL: Plan((2, 2, 2, 2), False, width=8, has_small_stem=True),
}


class PlainBlock(nn.Module):
    def __init__(self, plan: Plan, entering: int, planes: int, stride: int) -> None:
        super().__init__()
        if plan.is_bottleneck:
            middle = planes * plan.base // 64 * plan.groups
            leaving = 4 * planes
            self.conv1 = nn.Conv2d(entering, middle, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(middle)
            self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, groups=plan.groups, bias=False)
            self.bn2 = nn.BatchNorm2d(middle)
            self.conv3 = nn.Conv2d(middle, leaving, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(leaving)
        else:
            leaving = planes
            self.conv1 = nn.Conv2d(entering, planes, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(planes)
            self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(planes)
        self.is_bottleneck = plan.is_bottleneck
        self.leaving = leaving
        self.downsample = None
        if stride != 1 or entering != leaving:
            self.downsample = nn.Sequential(
                nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x)).relu()
        x = self.bn2(self.conv2(x))
        if self.is_bottleneck:
            x = self.bn3(self.conv3(x.relu()))
        return (x + shortcut).relu()


class PlainResNet(nn.Module):
    def __init__(self, plan: Plan, classes: int) -> None:
        super().__init__()
        kernel, stride = (3, 1) if plan.has_small_stem else (7, 2)
        self.conv1 = nn.Conv2d(3, plan.width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(plan.width)
        self.pool = nn.Identity() if plan.has_small_stem else nn.MaxPool2d(3, 2, 1)
        entering = plan.width
        for stage, count in enumerate(plan.blocks):
            blocks = []
            for number in range(count):
                block = PlainBlock(plan, entering, plan.width * 2**stage, 2 if stage and not number else 1)
                entering = block.leaving
                blocks.append(block)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(entering, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


def make_plain(name: str, classes: int = 7) -> PlainResNet:
    """With random weights and statistics, in evaluation mode."""
    torch.manual_seed(len(name))
    model = PlainResNet(PLANS[name], classes)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, middle in ((module.weight, 0.6), (module.bias, 0.0), (module.running_mean, 0.0)):
                assert tensor is not None
                nn.init.normal_(tensor, middle, 0.1)
            assert module.running_var is not None
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()
