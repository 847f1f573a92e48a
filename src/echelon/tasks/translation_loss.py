"""From packed pairs to a batch on the device, and from a batch to its loss: of training and of scoring alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from echelon.data.batches import PackedPairs
from echelon.data.prepared import damaged
from echelon.data.tokeniser import BOS
from echelon.models import fast
from echelon.models.kernels.selection import KernelChoice
from echelon.models.loss import SummedLoss, summed_loss, twin_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Transformer
from echelon.recipe.schema import TranslationTrain


@dataclass(frozen=True)
class TranslationBatch:
    """Packed sentences; every target ends with the end-of-sentence token."""

    source: Sequences
    target: Sequences


def to_batch(pairs: PackedPairs, vocabulary: int, folder: Path, device: torch.device) -> TranslationBatch:
    """The pairs on a device; DataError naming the `folder` they come from if they are of a larger vocabulary."""
    largest = max(int(pairs.source.max()), int(pairs.target.max()))
    if largest >= vocabulary:  # the kernels would read and write beyond their tables
        raise damaged(folder, "a shard", f"has a token {largest}, and there are {vocabulary} pieces")

    def sequences(tokens: NDArray[np.int64], offsets: NDArray[np.int64]) -> Sequences:
        lengths = tuple(np.diff(offsets).tolist())
        packed_sequences = Sequences(torch.from_numpy(tokens), torch.from_numpy(offsets), lengths)
        return packed_sequences.to(device, non_blocking=True)

    return TranslationBatch(
        source=sequences(pairs.source, pairs.source_offsets),
        target=sequences(pairs.target, pairs.target_offsets),
    )


@dataclass(frozen=True)
class TranslationLoss:
    """Cross-entropy: smoothed and of two passes, as the recipe says, in training; plain in evaluation mode."""

    train: TranslationTrain
    choice: KernelChoice
    device: torch.device

    def __call__(self, model: nn.Module, batch: TranslationBatch) -> SummedLoss:
        assert isinstance(model, Transformer)
        train = self.train
        smoothing, agreement = (train.label_smoothing, train.r_drop) if model.training else (0.0, 0.0)
        source, shifted = batch.source, shift_right(batch.target, BOS)
        if agreement:
            source, shifted = source.twice(), shifted.twice()
        kernels = self.choice.kernels if fast.can_run(model, self.device) else None
        run = model if kernels is None else partial(fast.hidden_states, kernels, model)
        hidden_MD = run(source, shifted)
        output_VD, targets_M = model.embeddings.output_VD, batch.target.tokens
        given, bias_V = (hidden_MD, output_VD, targets_M, smoothing, kernels), model.output_bias
        if agreement:
            return twin_loss(*given, bias_V=bias_V, agreement=agreement)
        return summed_loss(*given, bias_V=bias_V)
