"""Error feedback: what a lossy exchange did not send this time is added to what it sends next time."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from echelon.comm.group import Group

_PREFIX = "error/"


class ErrorFeedback:
    """What this worker still owes the others, in the layout of the flat gradients.

    Each worker saves its own. If the number of workers has changed, the sum of what a checkpoint holds is shared
    out over those who see it: what all of them owe together stays the same.
    """

    def __init__(self, group: Group, gradients: Tensor) -> None:
        self._group, self._gradients = group, gradients
        self.owed = torch.zeros_like(gradients) if group.size > 1 else gradients.new_empty(0)
        """A worker alone owes nothing, but for what it has taken over from more."""

    def pay_alone(self) -> None:
        """A worker alone adds what is owed to its gradient."""
        if len(self.owed):
            self._gradients += self.owed
            self.owed = self._gradients.new_empty(0)

    def state(self) -> dict[str, Tensor]:
        return {f"{_PREFIX}{self._group.rank}-of-{self._group.size}": self.owed} if len(self.owed) else {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        saved = {name: tensor for name, tensor in tensors.items() if name.startswith(_PREFIX)}
        own = f"{_PREFIX}{self._group.rank}-of-{self._group.size}"
        if own in saved:
            saved = {own: saved[own]}
        if saved or self._group.size > 1:
            self.owed = torch.zeros_like(self._gradients) if self._group.size == 1 else self.owed.zero_()
        for tensor in saved.values():
            self.owed += tensor.to(self.owed.device)
        if own not in saved:
            self.owed /= self._group.sharers.size
