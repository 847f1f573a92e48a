"""What workers train: batches of trigrams, a table of them, its loss and its accuracy."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from language import LanguageRecipe, Sentences
from torch import Tensor, nn

from echelon.data.images.batches import ImagePlan
from echelon.models.image_loss import class_loss
from echelon.models.loss import SummedLoss
from echelon.runfolder import RunFolder
from echelon.tasks.task import Scores, Slot, Split


class TrigramTable(nn.Module):
    """Logits of both languages: the mean of the rows of a sentence's trigrams."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(rows, 2)

    def forward(self, sentences: Sequence[str]) -> Tensor:
        weight = self.table.weight
        trigrams = [[text[at : at + 3] for at in range(max(1, len(text) - 2))] for text in sentences]
        hashed = [[zlib.crc32(three.encode()) % len(weight) for three in each] for each in trigrams]
        starts = torch.tensor([0, *map(len, hashed[:-1])]).cumsum(0)
        rows = torch.tensor([row for each in hashed for row in each])
        logits_NK: Tensor = self.table(rows.to(weight.device), starts.to(weight.device))
        return logits_NK


class LanguageTask:
    """Implements `Task`."""

    unit = "sentences"
    kernels = "PyTorch"

    def __init__(self, recipe: LanguageRecipe, data: Sentences, device: torch.device) -> None:
        self._recipe, self._data, self._device = recipe, data, device
        self._train = list(data.read("train"))
        batch, slots = recipe.train.batch_sentences, recipe.train.slots
        self._plan = ImagePlan(len(self._train), batch_images=batch, slots=slots, seed=recipe.seed)

    @property
    def steps_per_epoch(self) -> float:
        return self._plan.steps_per_epoch

    def has_split(self, split: Split) -> bool:
        return True

    def model_files(self, run: RunFolder) -> list[Path]:
        return []

    def build_model(self) -> TrigramTable:
        return TrigramTable(self._recipe.model.rows)

    def slots(self, step: int) -> list[Slot]:
        size = self._recipe.train.batch_sentences // self._recipe.train.slots
        return [Slot((step, number), size) for number in range(self._recipe.train.slots)]

    def load(self, slot: Slot) -> list[tuple[int, str]]:
        return [self._train[index] for index in self._plan.slot(*slot.plan).images]

    def step_flops(self, step: int) -> int:
        return 6 * 2 * sum(len(text) for slot in self.slots(step) for _, text in self.load(slot))

    def loss(self, model: nn.Module, batch: list[tuple[int, str]]) -> SummedLoss:
        labels_N = torch.tensor([language for language, _ in batch], device=self._device)
        return class_loss(model([text for _, text in batch]), labels_N)

    def scoring(self, split: Split, *, final: bool) -> LanguageScoring:
        return LanguageScoring(self, split, list(self._data.read(split)))


class LanguageScoring:
    """Implements `Scoring`: each worker scores every size-th sentence."""

    def __init__(self, task: LanguageTask, split: Split, sentences: Sequence[tuple[int, str]]) -> None:
        self._task, self._split, self._sentences = task, split, sentences

    def share(
        self, model: nn.Module, *, rank: int, size: int, on_batch: Callable[[float], None]
    ) -> list[Any]:
        shares = []
        for number in range(rank, len(self._sentences), size):
            on_batch(number / len(self._sentences))
            guess = int(model([self._sentences[number][1]]).argmax())
            shares.append([number, guess, self._task.loss(model, [self._sentences[number]]).nll.item()])
        return shares

    def combine(self, shares: Sequence[Any]) -> Scores:
        found = sorted(entry for share in shares for entry in share)
        right = sum(guess == self._sentences[number][0] for number, guess, _ in found)
        metrics = {"accuracy": 100 * right / len(found), "loss": sum(nll for *_, nll in found) / len(found)}
        outputs = [("English", "German")[guess] for _, guess, _ in found]
        return Scores(metrics, f"{self._split}:{len(found)}", outputs)
