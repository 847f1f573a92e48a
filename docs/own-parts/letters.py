"""A decoder-only language model of letters: a causal Transformer that reads English and guesses the next letter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import echelon
from echelon.data.demo_corpus import generate

PAD = 0


class Letters(echelon.OwnTask):
    """Sentences as bytes, from 1 on; 0 is both padding and the begin. Every letter is a target."""

    def __init__(self, data: Mapping[str, Any], model: Mapping[str, Any]) -> None:
        self.model = model
        corpus = generate(train=data.get("sentences", 400), valid=40, test=40)
        self.splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}

    def examples(self, split: str) -> Sequence[str]:
        return [pair.source for pair in self.splits[split]]

    def targets(self, example: str) -> int:
        return len(example.encode())

    def batch(self, examples: list[str], random: torch.Generator) -> Tensor:
        rows = [torch.tensor(list(text.encode())) + 1 for text in examples]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)

    def build_model(self) -> nn.Module:
        return Decoder(**{"width": 32, "layers": 2, "longest": 256, **self.model})

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        logits = model(F.pad(batch, (1, -1)))
        return F.cross_entropy(logits.flatten(0, 1), batch.flatten(), ignore_index=PAD, reduction="sum")

    def measure(self, model: nn.Module, batch: Tensor) -> dict[str, Tensor]:
        is_letter, guesses = batch != PAD, model(F.pad(batch, (1, -1))).argmax(2)
        return {"next_letter": 100.0 * ((guesses == batch) & is_letter).sum(1) / is_letter.sum(1)}


class Decoder(nn.Module):
    def __init__(self, width: int, layers: int, longest: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(257, width), nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, before: Tensor) -> Tensor:
        places = torch.arange(before.shape[1], device=before.device)
        mask = nn.Transformer.generate_square_subsequent_mask(before.shape[1], before.device)
        hidden = self.layers(self.letters(before) + self.places(places), mask, is_causal=True)
        return hidden @ self.letters.weight.T  # type: ignore[no-any-return]
