"""Classification: images, a convolutional network, cross-entropy, top-1 and top-5.

N  images    P  height and width    K  classes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from echelon.data.batch_plan import plan_images
from echelon.data.images.batches import ImagePlan, load_slot, take_middle
from echelon.data.images.image_store import Normalisation, Pixels, PreparedImages, open_images
from echelon.data.run_data import find_run_data
from echelon.errors import RunError
from echelon.models.image_loss import class_loss
from echelon.models.loss import SummedLoss
from echelon.models.resnet import ResNet
from echelon.models.speednet import SpeedNet
from echelon.recipe.image_sections import ImageEvaluation
from echelon.recipe.schema import ClassificationRecipe
from echelon.recipe.sizes import image_shape
from echelon.runfolder import RunFolder
from echelon.shapes.image_models import training_flops
from echelon.shapes.speednet import SpeedNetShape
from echelon.tasks.accuracy import combine_guesses, ranked_guesses
from echelon.tasks.task import Scores, Slot, Split

_SCORING_IMAGES = 256
_WHITENING_IMAGES = 5000


@dataclass(frozen=True)
class ImageBatch:
    """Normalised images, channels last in memory, and their classes."""

    images_NCPP: Tensor
    labels_N: Tensor
    mixed: tuple[Tensor, float] | None = None
    """With mixup: the labels that images were blended with, and the share of the first."""


class ClassificationTask:
    """Implements `Task` on prepared images."""

    unit = "images"
    kernels = "PyTorch"

    def __init__(self, recipe: ClassificationRecipe, prepared: PreparedImages, device: torch.device) -> None:
        self._recipe = recipe
        self._prepared = prepared
        self._device = device
        self._plan: ImagePlan = plan_images(recipe, prepared)
        self._shape = image_shape(recipe.model, prepared.num_classes, prepared.manifest.pixels)
        self._normalise = Normaliser(prepared.manifest.normalisation, device)

    @classmethod
    def of_run(cls, recipe: ClassificationRecipe, run: RunFolder, device: torch.device) -> ClassificationTask:
        """The task on the images that `train` prepared for this run."""
        named = find_run_data(run)
        prepared = open_images(named.folder)
        named.check(prepared.key)
        return cls(recipe, prepared, device)

    @property
    def steps_per_epoch(self) -> float:
        return self._plan.steps_per_epoch

    def has_split(self, split: Split) -> bool:
        return split in self._prepared.splits

    def model_files(self, run: RunFolder) -> list[Path]:
        return [run.images]

    def build_model(self) -> nn.Module:
        model = build_network(self._recipe, self._prepared.num_classes, self._prepared.manifest.pixels)
        if isinstance(model, SpeedNet):
            some = np.arange(min(_WHITENING_IMAGES, len(self._prepared.train)))
            pictures = take_middle(self._prepared.train, some, self._prepared.manifest.pixels)
            model.whiten.fit(Normaliser(self._prepared.manifest.normalisation)(pictures))
        return model

    def slots(self, step: int) -> list[Slot]:
        numbers = range(self._recipe.train.slots)
        size = self._recipe.train.batch_images // self._recipe.train.slots
        return [Slot((step, number), size) for number in numbers]

    def step_flops(self, step: int) -> int:
        return training_flops(self._shape, self._recipe.train.batch_images)

    def load(self, slot: Slot) -> ImageBatch:
        data = self._recipe.data
        plan = self._plan.slot(*slot.plan)
        batch = load_slot(
            self._prepared.train, plan, data.augment, self._prepared.manifest.pixels, self._recipe.seed
        )
        images, labels = self._normalise(batch.images), torch.from_numpy(batch.labels).to(self._device)
        if batch.mixed_share is None:
            return ImageBatch(images, labels)
        share = batch.mixed_share
        return ImageBatch(share * images + (1 - share) * images.flip(0), labels, (labels.flip(0), share))

    def loss(self, model: nn.Module, batch: ImageBatch) -> SummedLoss:
        smoothing = self._recipe.train.label_smoothing if model.training else 0.0
        return class_loss(model(batch.images_NCPP), batch.labels_N, smoothing, batch.mixed)

    def scoring(self, split: Split, *, final: bool) -> ClassificationScoring:
        if split not in self._prepared.splits:
            raise RunError(f"the data have no {split} set to score; choose another with --split")
        manifest, store = self._prepared.manifest, self._prepared.splits[split]
        pictures = ScoredPictures(
            split, store.labels.astype(np.int64), partial(take_middle, store, pixels=manifest.pixels)
        )
        return ClassificationScoring(self._recipe.evaluate, pictures, manifest.classes, self._normalise)


@dataclass(frozen=True)
class ScoredPictures:
    """A set of images to score."""

    name: str
    labels: NDArray[np.int64]
    see: Callable[[NDArray[np.int64]], Pixels]
    """The images at some places as the model sees them: [N, P, P, 3]."""


@dataclass(frozen=True)
class ClassificationScoring:
    """Implements `Scoring` on a set of images."""

    evaluate: ImageEvaluation
    pictures: ScoredPictures
    classes: Sequence[str]
    normalise: Normaliser

    def share(
        self, model: nn.Module, *, rank: int, size: int, on_batch: Callable[[float], None]
    ) -> list[Any]:
        """Every `size`-th batch: its number, its loss, and for each image the rank of its class and the guess."""
        shares = []
        for number, indices in _batches(len(self.pictures.labels)):
            if number % size == rank:
                on_batch(int(indices[0]) / len(self.pictures.labels))
                shares.append([number, *self._score_batch(model, indices)])
        return shares

    def _score_batch(self, model: nn.Module, indices: NDArray[np.int64]) -> list[Any]:
        images_NCPP = self.normalise(self.pictures.see(indices))
        labels_N = torch.from_numpy(self.pictures.labels[indices]).to(images_NCPP.device)
        logits_NK = classify(model, images_NCPP, self.evaluate)
        return [class_loss(logits_NK, labels_N).nll.item(), *ranked_guesses(logits_NK, labels_N)]

    def combine(self, shares: Sequence[Any]) -> Scores:
        batches = sorted(batch for share in shares for batch in share)
        labels, classes = self.pictures.labels, self.classes
        loss = math.fsum(batch[1] for batch in batches) / len(labels)
        ranks = [rank for batch in batches for rank in batch[2]]
        guesses = [guess for batch in batches for guess in batch[3]]
        assert len(guesses) == len(labels), "every image counts once"
        metrics, details = combine_guesses(labels.tolist(), ranks, guesses, classes)
        signature = f"{self.pictures.name}:{len(labels)}|classes:{len(classes)}|{format_views(self.evaluate)}"
        outputs, right = ([classes[number] for number in each] for each in (guesses, labels))
        return Scores(metrics | {"loss": loss}, signature, outputs, right, details=details)


class Normaliser:
    """From pixels [N, P, P, 3] to normalised float32 [N, 3, P, P], channels last in memory: nothing is moved."""

    def __init__(self, values: Normalisation, device: torch.device | None = None) -> None:
        self._mean = torch.tensor(values.mean, device=device).view(1, 3, 1, 1)
        self._scale = 1 / torch.tensor(values.deviation, device=device).view(1, 3, 1, 1)
        self._device = device

    def __call__(self, pictures: Pixels) -> Tensor:
        images = torch.from_numpy(pictures).permute(0, 3, 1, 2).to(self._device, non_blocking=True)
        return images.to(torch.float32).sub_(self._mean).mul_(self._scale)


def build_network(recipe: ClassificationRecipe, classes: int, pixels: int) -> nn.Module:
    """The recipe's network, newly initialised."""
    shape, model = image_shape(recipe.model, classes, pixels), recipe.model
    if isinstance(shape, SpeedNetShape):
        return SpeedNet(shape, momentum=model.norm_momentum)
    return ResNet(shape, momentum=model.norm_momentum, zero_init=model.zero_init)


def classify(model: nn.Module, images_NCPP: Tensor, evaluate: ImageEvaluation) -> Tensor:
    """Logits [N, K] in float32; with several views of an image, the log of the mean of their probabilities."""
    seen = views(images_NCPP, evaluate)
    if len(seen) == 1:
        logits_NK: Tensor = model(images_NCPP).float()
        return logits_NK
    logs = [model(view_NCPP).float().log_softmax(1) + math.log(share) for view_NCPP, share in seen]
    return torch.stack(logs).logsumexp(0)


def views(images_NCPP: Tensor, evaluate: ImageEvaluation) -> list[tuple[Tensor, float]]:
    """The views that classify an image, and their weights: the image itself, moved, mirrored."""
    found = [(images_NCPP, 1.0)]
    if evaluate.shift:
        pixels, wide = images_NCPP.shape[2], 2 * evaluate.shift
        padded = F.pad(images_NCPP, (evaluate.shift,) * 4, "reflect")
        moved = [padded[:, :, start : start + pixels, start : start + pixels] for start in (0, wide)]
        found = [(images_NCPP, 0.5), *((view, 0.25) for view in moved)]
    if evaluate.flip:
        found = [(side, share / 2) for view, share in found for side in (view, view.flip(3))]
    return found


def format_views(evaluate: ImageEvaluation) -> str:
    return f"flip:{'yes' if evaluate.flip else 'no'}|shift:{evaluate.shift}"


def _batches(count: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Images in fixed batches, so the scores do not depend on how many workers compute them."""
    for number, start in enumerate(range(0, count, _SCORING_IMAGES)):
        yield number, np.arange(start, min(start + _SCORING_IMAGES, count))
