"""A model's weights and gradients, each in one flat float32 buffer; the model's own tensors are views into them.

One buffer makes one optimiser kernel, one norm, and all-reduce buckets that are plain slices. Matrices lie in the order
in which backward finishes them (the reverse of the module's order), so that buckets fill from the front; vectors, which
are not decayed and weigh little, follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from echelon.train.votes import NUM_VOTES

NUM_EXTRAS = 1 + NUM_VOTES
"""The step's loss and votes."""


@dataclass(frozen=True)
class Slice:
    """Where one parameter lies in the flat buffers."""

    name: str
    parameter: nn.Parameter
    start: int
    end: int

    def view(self, flat: Tensor) -> Tensor:
        """This parameter's part of `flat`, in the parameter's shape."""
        return flat[self.start : self.end].view(self.parameter.shape)


class FlatParameters:
    """Takes over a model's parameters. Tensors with two or more dimensions come first: they are decayed."""

    def __init__(self, model: nn.Module, num_statistics: int = 0) -> None:
        named = list(reversed(list(model.named_parameters())))
        ordered = [pair for pair in named if pair[1].ndim >= 2] + [pair for pair in named if pair[1].ndim < 2]
        self.slices = list(_slices(ordered))
        self.size = self.slices[-1].end
        self.num_decayed = sum(s.end - s.start for s in self.slices if s.parameter.ndim >= 2)
        device = ordered[0][1].device
        self.weights = torch.empty(self.size, dtype=torch.float32, device=device)
        self.running = torch.empty(0, device=device)
        """The running statistics that go with the weights, if the model has any (train/statistics.py)."""
        for s in self.slices:
            s.view(self.weights).copy_(s.parameter.detach())
            s.parameter.data = s.view(self.weights)
        # The step's sums that are not gradients ride along at the end: no collective of their own.
        length = self.size + NUM_EXTRAS + num_statistics
        self.move_gradients(torch.zeros(length, dtype=torch.float32, device=device))

    def move_gradients(self, reduced: Tensor) -> None:
        """Keep gradients and sums in this buffer from now on; before any optimiser has looked for them."""
        self.reduced = reduced
        self.gradients = reduced[: self.size]
        self.extras = reduced[self.size : self.size + NUM_EXTRAS]
        self.loss, self.votes = self.extras[0], self.extras[1:]
        self.statistics = reduced[self.size + NUM_EXTRAS :]
        self.sums = reduced[self.size :]  # both: whatever becomes of gradients, these are summed exactly
        for s in self.slices:
            s.parameter.grad = s.view(self.gradients)

    def zero(self) -> None:
        """Forget the last step's gradients and sums."""
        self.reduced.zero_()

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The parts of `flat` under their parameters' names."""
        return {s.name: s.view(flat) for s in self.slices}


def _slices(named: list[tuple[str, nn.Parameter]]) -> Iterator[Slice]:
    start = 0
    for name, parameter in named:
        yield Slice(name, parameter, start, start + parameter.numel())
        start += parameter.numel()
