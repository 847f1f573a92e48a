"""A task of the user's own at work: its few functions, as the engine's `Task` and `Scoring`.

What the engine promises rests on one rule, which `echelon doctor --task` checks: what comes of a slot depends on the
slot's examples and its random numbers alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from echelon.data.images.batches import ImagePlan
from echelon.data.randomness import bit_generator
from echelon.errors import UserError
from echelon.models.loss import SummedLoss
from echelon.recipe.own_code import import_own, own_paths, require_allowed
from echelon.recipe.own_recipe import OwnRecipe
from echelon.runfolder import RunFolder
from echelon.tasks.task import Scores, Slot, Split

TARGETS = "targets"
"""What steps of own tasks are counted in."""
_BATCH_OF_SLOT = 32
"""The stream of random bits that a slot's examples are drawn and varied with."""


class OwnTask(Protocol):
    """What a user's task brings. Derive from it: methods with a body may be left out.

    A recipe names the class; it is made with the recipe's tables `data` and `model`, as dictionaries.
    """

    def __init__(self, data: Mapping[str, Any], model: Mapping[str, Any]) -> None: ...

    def examples(self, split: str) -> Sequence[Any] | None:
        """The examples of "train", "valid" or "test", the same ones in the same order everywhere; None if there is no
        such split. Anything with a length and an index."""
        ...

    def build_model(self) -> nn.Module:
        """The network, initialised with torch's random numbers, which are seeded."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The sum of the losses of a batch's targets: a sum, not a mean, so that slots and workers add up."""
        ...

    def batch(self, examples: list[Any], random: torch.Generator) -> Any:
        """Examples as tensors, augmented if need be, with no random numbers but these."""
        return default_collate(examples)

    def targets(self, example: Any) -> int:
        """How many targets an example counts for in the mean of losses."""
        return 1

    def measure(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Numbers for each example of a batch, a list or tensor by name; their means are the scores."""
        return {}

    def summarise(self, measured: Mapping[str, list[float]]) -> Mapping[str, float]:
        """The scores of a set, from what `measure` has measured of all its examples, in order."""
        return {name: sum(values) / len(values) for name, values in measured.items()}


class OwnTraining:
    """Implements `Task` with an `OwnTask` and the parts that the recipe names."""

    unit = TARGETS
    kernels = "PyTorch"

    def __init__(self, recipe: OwnRecipe, device: torch.device) -> None:
        self._recipe, self._device = recipe, device
        self.own = open_own(recipe)
        self._train = require_examples(self.own, "train", recipe.task)
        self._loss = import_own(recipe.train.loss) if recipe.train.loss else self.own.loss
        measure = recipe.evaluate.measure
        self.measure = import_own(measure) if measure else self.own.measure
        self._plan = ImagePlan(
            len(self._train),
            batch_images=recipe.train.batch_examples,
            slots=recipe.train.slots,
            seed=recipe.seed,
        )
        self._numbers = 0

    @property
    def steps_per_epoch(self) -> float:
        return self._plan.steps_per_epoch

    def has_split(self, split: Split) -> bool:
        return self.own.examples(split) is not None

    def model_files(self, run: RunFolder) -> list[Path]:
        return []

    def build_model(self) -> nn.Module:
        model = build_own_model(self._recipe, self.own)
        self._numbers = sum(parameter.numel() for parameter in model.parameters())
        return model

    def slots(self, step: int) -> list[Slot]:
        return [
            Slot((step, number), sum(map(self.own.targets, self._examples(step, number))))
            for number in range(self._recipe.train.slots)
        ]

    def _examples(self, step: int, number: int) -> list[Any]:
        return [self._train[int(index)] for index in self._plan.slot(step, number).images]

    def load(self, slot: Slot) -> Any:
        step, number = slot.plan
        bits = bit_generator(self._recipe.seed, _BATCH_OF_SLOT, step, number)
        return self.as_batch(self._examples(step, number), int(bits.random_raw(1)[0]) >> 1)

    def as_batch(self, examples: list[Any], seed: int) -> Any:
        """A batch on the worker's device."""
        return to_device(self.own.batch(examples, torch.Generator().manual_seed(seed)), self._device)

    def step_flops(self, step: int) -> int:
        return 6 * self._numbers * sum(slot.targets for slot in self.slots(step))

    def loss(self, model: nn.Module, batch: Any) -> SummedLoss:
        loss = self._loss(model, batch)
        if not isinstance(loss, Tensor) or loss.ndim:
            raise UserError(
                f"{self._recipe.task}: loss returned {_shape(loss)}, and must return a sum, one number"
            )
        return SummedLoss(loss, loss.detach())

    def scoring(self, split: Split, *, final: bool) -> OwnScoring:
        examples = require_examples(self.own, split, self._recipe.task)
        return OwnScoring(self, self._recipe, split, examples)


class OwnScoring:
    """Implements `Scoring`: batches of a fixed size are dealt out, so that a batch's numbers do not depend on the
    workers, and their results are added up in order."""

    def __init__(self, task: OwnTraining, recipe: OwnRecipe, split: Split, examples: Sequence[Any]) -> None:
        self._task, self._recipe, self._split, self._examples = task, recipe, split, examples

    def share(
        self, model: nn.Module, *, rank: int, size: int, on_batch: Callable[[float], None]
    ) -> list[Any]:
        each, count = self._recipe.evaluate.batch, len(self._examples)
        shares = []
        for number, first in enumerate(range(0, count, each)):
            if number % size != rank:
                continue
            on_batch(first / count)
            examples = [self._examples[index] for index in range(first, min(first + each, count))]
            batch = self._task.as_batch(examples, number)
            loss = self._task.loss(model, batch).nll.item()
            measured = {name: _numbers(values) for name, values in self._task.measure(model, batch).items()}
            shares.append([number, loss, sum(map(self._task.own.targets, examples)), measured])
        return shares

    def combine(self, shares: Sequence[Any]) -> Scores:
        found = sorted((entry for share in shares for entry in share), key=lambda entry: int(entry[0]))
        measured: dict[str, list[float]] = defaultdict(list)
        for *_, numbers in found:
            for name, values in numbers.items():
                measured[name] += values
        loss = sum(entry[1] for entry in found) / sum(entry[2] for entry in found)
        metrics = {"loss": loss, **self._task.own.summarise(measured)}
        missing = [name for name in self._recipe.evaluate.scores if name not in metrics]
        if missing:
            raise UserError(
                f"evaluate.scores names {', '.join(missing)}, which is not measured; there are {', '.join(metrics)}"
            )
        return Scores(metrics, f"{self._split}:{len(self._examples)}|{self._recipe.task}")


def open_own(recipe: OwnRecipe) -> OwnTask:
    """The user's task, made with its settings; UserError if its code cannot be imported, or may not."""
    require_allowed(own_paths(recipe))
    made: OwnTask = import_own(recipe.task)(recipe.data_settings, recipe.model_settings)
    return made


def build_own_model(recipe: OwnRecipe, own: OwnTask) -> nn.Module:
    """The network that the recipe or the task names; UserError if workers would not agree on it."""
    build = recipe.model.build
    model: nn.Module = import_own(build)(**recipe.model_settings) if build else own.build_model()
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
            raise UserError(
                f"{recipe.task}: {name} is a {type(module).__name__}, whose running statistics would be each worker's "
                "own; use echelon.models.batch_norm.BatchNorm, or a norm without statistics, such as GroupNorm"
            )
    return model


def require_examples(own: OwnTask, split: str, path: str) -> Sequence[Any]:
    """A split's examples; UserError if there are none."""
    examples = own.examples(split)
    if examples is None or not len(examples):
        raise UserError(f"{path}: has no examples of {split!r}")
    return examples


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors in tuples, lists and dictionaries, moved to a device."""
    match value:
        case Tensor():
            return value.to(device)
        case dict():
            return {name: to_device(inner, device) for name, inner in value.items()}
        case list() | tuple():
            moved = [to_device(inner, device) for inner in value]
            return type(value)(*moved) if hasattr(value, "_fields") else type(value)(moved)
    return value


def _numbers(values: Any) -> list[float]:
    return [float(value) for value in (values.tolist() if isinstance(values, Tensor) else values)]


def _shape(value: Any) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(type(value).__name__)
    )
