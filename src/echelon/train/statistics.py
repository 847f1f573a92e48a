"""BatchNorm's statistics: measured by each slot, known to all workers after the step, combined in slot order.

Every slot has a row of its own at the end of the step's flat buffer, in which other workers leave zeros; so the sum
over the workers is exact, and the running statistics do not depend on who computed which slot.
"""

from __future__ import annotations

from torch import Tensor, nn

from echelon.models.batch_norm import BatchNorm
from echelon.train.flat import FlatParameters


class SlotStatistics:
    """The statistics of all of a model's BatchNorms. A model without any has none, and all of this does nothing."""

    def __init__(self, model: nn.Module, num_slots: int) -> None:
        self._norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
        self._num_slots = num_slots
        self.row_size = sum(norm.measured_2C.numel() for norm in self._norms)

    @property
    def size(self) -> int:
        """Numbers in the rows of all slots."""
        return self._num_slots * self.row_size

    def attach(self, flat: FlatParameters) -> None:
        """Use the end of the step's buffer for the slots' rows; the modules' buffers become views of two flat ones."""
        self._flat = flat
        # Zeros: torch weighs what was there before with nothing, and nothing times what is not finite is not a number.
        self._measured = flat.statistics.new_zeros(self.row_size)
        flat.running = flat.statistics.new_empty(self.row_size)
        start = 0
        for norm in self._norms:
            end = start + norm.measured_2C.numel()
            running_2C = flat.running[start:end].view_as(norm.measured_2C)
            running_2C[0], running_2C[1] = norm.running_mean, norm.running_var
            norm.running_mean, norm.running_var = running_2C[0], running_2C[1]
            norm.measured_2C = self._measured[start:end].view_as(norm.measured_2C)
            start = end

    def note(self, slot: int) -> None:
        """Keep what the slot that has just gone forward has measured."""
        self._rows[slot].copy_(self._measured)

    def apply(self, step: int, slots: range) -> None:
        """Bring the running statistics up to date with those of a step's slots; the first step is 1.

        They begin as plain means of the steps so far, so that what they were initialised with leaves no trace.
        """
        if self._norms:
            measured = self._rows[slots.start : slots.stop].mean(0)
            self._flat.running.lerp_(measured, max(self._norms[0].momentum, 1 / step))

    @property
    def _rows(self) -> Tensor:
        return self._flat.statistics.view(self._num_slots, self.row_size)
