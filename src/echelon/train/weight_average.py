"""A running average of the weights, which is scored, saved and used in their place; training continues with its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from echelon.train.flat import FlatParameters

_TRAINED = "trained/"


class WeightAverage:
    """An exponential moving average of a model's weights and running statistics; without a decay it does nothing.

    A checkpoint's model is the average. The weights that training continues with lie beside the optimiser's state.
    """

    def __init__(self, model: nn.Module, flat: FlatParameters, decay: float | None) -> None:
        self._model, self._decay = model, decay
        self._live = [flat.weights, flat.running] if decay is not None else []
        self.averages = [tensor.clone() for tensor in self._live]

    def update(self, step: int) -> None:
        """Take the weights after a step into the average; the first steps count for more, as there is little yet."""
        for average, live in zip(self.averages, self._live, strict=True):
            average.lerp_(live, 1 - min(self._decay or 0.0, (1 + step) / (10 + step)))

    def start(self) -> None:
        """Begin anew with the weights as they are."""
        for average, live in zip(self.averages, self._live, strict=True):
            average.copy_(live)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the model holds the average."""
        kept = [live.clone() for live in self._live]
        self._put(self.averages)
        try:
            yield
        finally:
            self._put(kept)

    def _put(self, tensors: list[Tensor]) -> None:
        for live, tensor in zip(self._live, tensors, strict=True):
            live.copy_(tensor)

    def saved_model(self) -> dict[str, Tensor]:
        """What a checkpoint calls the model, by the model's names."""
        return {name: self._averaged(tensor) for name, tensor in self._model.state_dict().items()}

    def saved_state(self) -> dict[str, Tensor]:
        """What training continues with, if that is not the model."""
        tensors = self._model.state_dict()
        return {
            _TRAINED + name: tensor
            for name, tensor in tensors.items()
            if self._averaged(tensor) is not tensor
        }

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """After the checkpoint's model has been loaded; KeyError if it was saved without an average."""
        self.start()
        for name, tensor in self.saved_state().items():
            tensor.copy_(tensors[name])

    @staticmethod
    def leave_out(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is not of an average among the tensors that lie beside the model in a checkpoint."""
        return {name: tensor for name, tensor in tensors.items() if not name.startswith(_TRAINED)}

    def _averaged(self, tensor: Tensor) -> Tensor:
        for live, average in zip(self._live, self.averages, strict=True):
            if tensor.untyped_storage().data_ptr() == live.untyped_storage().data_ptr():
                return average.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return tensor
