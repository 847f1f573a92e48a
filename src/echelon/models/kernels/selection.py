"""Whether a worker trains with the own kernels or in plain PyTorch, and the words that say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from echelon.models.kernels.build import KernelsUnavailableError
from echelon.models.kernels.ops import Kernels


@dataclass(frozen=True)
class KernelChoice:
    """The kernels, or none; and which it is, for people."""

    kernels: Kernels | None
    words: str


def choose_kernels(
    setting: Literal["auto", "off"], device: torch.device, precision: str, activation: str = "relu"
) -> KernelChoice:
    """The own kernels, if wanted and available; compiled at first use, which takes some seconds."""
    if setting == "off":
        return KernelChoice(None, "plain PyTorch (train.kernels is off)")
    if device.type != "cpu":
        return KernelChoice(None, f"plain PyTorch on {device.type}")
    if precision == "fp16":
        return KernelChoice(None, "plain PyTorch: the own kernels know float32 and bf16, not fp16")
    if activation != "relu":
        return KernelChoice(None, f"plain PyTorch: the own kernels know relu, not {activation}")
    try:
        return KernelChoice(Kernels(), "own kernels, compiled for this CPU")
    except KernelsUnavailableError as reason:
        return KernelChoice(None, f"plain PyTorch, which is slower: {reason}")
