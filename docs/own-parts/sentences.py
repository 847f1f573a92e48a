"""A text classifier: is a sentence English or German? Words are hashed, and the mean of their vectors decides."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import echelon
from echelon.data.demo_corpus import generate

Example = tuple[str, int]
Batch = tuple[Tensor, Tensor, Tensor]


class Languages(echelon.OwnTask):
    """The embedded corpus: class 0 is English, class 1 is German."""

    def __init__(self, data: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self.rows, self.width = model.get("rows", 4096), model.get("width", 16)
        corpus = generate(train=data.get("sentences", 400), valid=50, test=50)
        splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
        self.splits = {
            split: [each for pair in pairs for each in ((pair.source, 0), (pair.target, 1))]
            for split, pairs in splits.items()
        }

    def examples(self, split: str) -> Sequence[Example]:
        return self.splits[split]

    def batch(self, examples: list[Example], random: torch.Generator) -> Batch:
        hashed = [[zlib.crc32(word.encode()) % self.rows for word in text.split()] for text, _ in examples]
        starts = torch.tensor([0, *map(len, hashed[:-1])]).cumsum(0)
        words = torch.tensor([word for sentence in hashed for word in sentence])
        return words, starts, torch.tensor([language for _, language in examples])

    def build_model(self) -> nn.Module:
        return Bag(self.rows, self.width)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        words, starts, languages = batch
        return F.cross_entropy(model(words, starts), languages, reduction="sum")

    def measure(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        words, starts, languages = batch
        return {"accuracy": 100.0 * (model(words, starts).argmax(1) == languages)}


class Bag(nn.Module):
    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.words, self.decide = nn.EmbeddingBag(rows, width), nn.Linear(width, 2)
        self.dropout = nn.Dropout(0.1)

    def forward(self, words: Tensor, starts: Tensor) -> Tensor:
        return self.decide(self.dropout(self.words(words, starts)))  # type: ignore[no-any-return]
