"""What the engine asks of a task: batches, a model, a loss, a score. The engine knows nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import nn

from echelon.models.loss import SummedLoss
from echelon.runfolder import RunFolder

Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Slot:
    """One of a step's micro-batches: enough to load it, and what it counts for."""

    plan: Any
    targets: int


@dataclass(frozen=True)
class Scores:
    """The result of scoring a split."""

    metrics: dict[str, float]
    signature: str
    outputs: list[str] = field(default_factory=list)
    """One prediction an example, in the order of the data."""
    references: list[str] = field(default_factory=list)
    """What each output should have been; only the first worker has them."""
    samples: list[dict[str, str]] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    """What is kept with the scores and is not a single number, such as a confusion matrix; JSON."""


class Scoring(Protocol):
    """A set of examples, and how workers score it together."""

    def share(self, model: nn.Module, *, rank: int, size: int, on_batch: Callable[[float], None]) -> Any:
        """This worker's share, as JSON.

        `on_batch` is called before every batch with the share of the work that is done, so that a long scoring is seen
        to make progress; it may raise.
        """
        ...

    def combine(self, shares: Sequence[Any]) -> Scores:
        """All workers' shares as one result, the same for any number of workers."""
        ...


class Task(Protocol):
    """Joins data, model, loss and metric."""

    @property
    def unit(self) -> str:
        """What the targets of a slot are, in the plural, for messages and names of measurements: tokens, images."""
        ...

    @property
    def kernels(self) -> str:
        """What computes the model, in words."""
        ...

    @property
    def steps_per_epoch(self) -> float: ...

    def has_split(self, split: Split) -> bool: ...

    def model_files(self, run: RunFolder) -> Sequence[Path]:
        """The run's files that a checkpoint needs to be used, beside the recipe."""
        ...

    def build_model(self) -> nn.Module: ...

    def slots(self, step: int) -> Sequence[Slot]:
        """The slots of update `step` (the first is 1); a pure function of recipe, seed and step."""
        ...

    def load(self, slot: Slot) -> Any:
        """The slot's tensors."""
        ...

    def step_flops(self, step: int) -> int:
        """FLOPs of update `step`, forward and backward, without what is only padding."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> SummedLoss: ...

    def scoring(self, split: Split, *, final: bool) -> Scoring:
        """How a split is scored; `final` asks for the best search, not the quickest. RunError if there is none."""
        ...
