"""Number formats: autocast for the matrix products, and dynamic loss scaling for float16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

_BF16_CAPABILITY = (8, 0)
"""The compute capability of the first NVIDIA GPUs with bf16 (Ampere)."""
_DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """How a slot is computed. Only float16 needs its loss scaled: its gradients would vanish otherwise."""

    def __init__(self, kind: Literal["float32", "bf16", "fp16"], device: torch.device) -> None:
        self._kind = kind
        self._device = device
        self.scaling = LossScaling() if kind == "fp16" else None

    @property
    def dtype(self) -> torch.dtype:
        """The format of the matrix products."""
        return _DTYPES[self._kind]

    @property
    def scale(self) -> float:
        """What the loss is multiplied by before backward, and the gradient divided by after it."""
        return self.scaling.scale if self.scaling else 1.0

    def autocast(self) -> torch.autocast:
        """The context in which forward runs."""
        if self._kind == "float32":
            return torch.autocast(self._device.type, enabled=False)
        return torch.autocast(self._device.type, dtype=self.dtype)

    def state(self) -> dict[str, Any]:
        return {"scale": self.scaling.scale, "good_steps": self.scaling.good_steps} if self.scaling else {}

    def load_state(self, state: dict[str, Any]) -> None:
        if self.scaling and state:
            self.scaling = LossScaling(scale=state["scale"], good_steps=state["good_steps"])


def warning_of(kind: str, device: torch.device) -> str | None:
    """What a user should know who asks this device for this format."""
    if (
        kind != "bf16"
        or device.type != "cuda"
        or torch.cuda.get_device_capability(device) >= _BF16_CAPABILITY
    ):
        return None
    name = torch.cuda.get_device_name(device)
    return f'{name} has no units for bf16 and computes it slowly; train.precision = "fp16" is faster there'


@dataclass
class LossScaling:
    """Halve the scale when a gradient overflows, double it after a long while without."""

    scale: float = 2.0**16
    good_steps: int = 0
    growth_every: int = 2000
    smallest: float = 2.0**-10
    largest: float = 2.0**24

    def overflowed(self) -> None:
        self.scale = max(self.scale / 2, self.smallest)
        self.good_steps = 0

    def succeeded(self) -> None:
        self.good_steps += 1
        if self.good_steps >= self.growth_every:
            self.scale = min(self.scale * 2, self.largest)
            self.good_steps = 0
