"""A model's weights and gradients, each in one flat float32 buffer; the model's own tensors are views into them.

One buffer makes one optimiser kernel, one norm, and all-reduce buckets that are plain slices. Matrices lie in the order
in which backward finishes them (the reverse of the module's order), so that buckets fill from the front; vectors, which
are not decayed and weigh little, follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from echelon.train.votes import NUM_VOTES


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
    """Takes over those of a model's parameters that are trained. Tensors with two or more dimensions come first: they
    are decayed."""

    def __init__(self, model: nn.Module, num_slots: int = 1, num_statistics: int = 0) -> None:
        self.num_slots, self._num_statistics = num_slots, num_statistics
        self._hooks: list[RemovableHandle] = []
        named = [pair for pair in reversed(list(model.named_parameters())) if pair[1].requires_grad]
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
        self.num_reduced = self.size + num_slots + NUM_VOTES + num_statistics
        """Numbers that are summed over the workers, without those that an exchange adds."""
        self._lay_out(torch.zeros(self.num_reduced, dtype=torch.float32, device=device))
        for s in self.slices:
            s.parameter.grad = s.view(self.gradients)

    def hold_whole_numbers(self, reduced: Tensor) -> None:
        """Keep gradients and sums in this buffer from now on, which may be longer; before any optimiser has looked for
        them. It is summed as int32: whoever takes backward's gradients adds them to it, so no parameter has one.

        Losses and statistics need nothing done: of the workers one has written a number's bits, the others zeros.
        """
        self._lay_out(reduced)
        self.votes: Tensor = self.votes.view(torch.int32)
        for s in self.slices:
            s.parameter.grad = None

    def on_gradient(self, s: Slice, call: Callable[[nn.Parameter], None]) -> None:
        """Have this called whenever backward has finished a parameter's gradient."""
        self._hooks.append(s.parameter.register_post_accumulate_grad_hook(call))  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Forget who waits for gradients: another exchange takes over."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _lay_out(self, reduced: Tensor) -> None:
        self.reduced = reduced
        self.gradients = reduced[: self.size]
        self.sums = reduced[self.size :]  # whatever becomes of gradients, these are summed exactly
        self.losses = self.sums[: self.num_slots]
        """Each slot's."""
        votes_end = self.num_slots + NUM_VOTES
        self.votes = self.sums[self.num_slots : votes_end]
        self.statistics = self.sums[votes_end : votes_end + self._num_statistics]

    @property
    def loss(self) -> float:
        """The sum over all slots whose losses are there."""
        return math.fsum(self.losses.tolist())

    def show(self, loss: float, votes: Sequence[float]) -> None:
        """Have the loop read these, whatever was computed here."""
        self.losses.zero_()
        self.losses[0] = loss
        self.votes.copy_(torch.tensor(votes))

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
