"""A peer on a lead: it reads numbers of steps from its input and answers with what they took.

Peers know nothing of Echelon. Each has an environment of its own, gets the model's sizes and batches of token ids in
files, and pads every batch as its sentences need. Batches hold sentences of like length and are whole steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

PAD, EOS, BOS, UNK = 0, 1, 2, 3
DROPOUT, SMOOTHING, CLIP_NORM, LEARNING_RATE = 0.1, 0.1, 1.0, 1e-4
Batch = dict[str, list[list[int]]]


@dataclass(frozen=True)
class Given:
    """What a peer is started with."""

    sizes: dict[str, int]
    batches: list[Batch]
    is_bf16: bool
    is_eager: bool
    """Attention as plain products, where a peer has a choice."""

    @classmethod
    def from_command_line(cls) -> Given:
        parser = argparse.ArgumentParser()
        parser.add_argument("sizes", type=Path)
        parser.add_argument("batches", type=Path)
        parser.add_argument("--bf16", action="store_true")
        parser.add_argument("--eager", action="store_true")
        options = parser.parse_args()
        batches = [json.loads(line) for line in options.batches.read_text().splitlines()]
        return cls(json.loads(options.sizes.read_text()), batches, options.bf16, options.eager)

    def autocast(self) -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.is_bf16 else nullcontext()


def padded(sentences: list[list[int]], pad: int = PAD) -> torch.Tensor:
    longest = max(map(len, sentences))
    return torch.tensor([sentence + [pad] * (longest - len(sentence)) for sentence in sentences])


def renumbered(batch: Batch, numbers: dict[int, int]) -> Batch:
    """For who has other numbers for padding, begin, end and unknown."""
    return {
        side: [[numbers.get(token, token) for token in sentence] for sentence in sentences]
        for side, sentences in batch.items()
    }


def update(model: torch.nn.Module, optimiser: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimiser.step()


def train_as_told(batches: list[Batch], train_step: Callable[[Batch], int]) -> None:
    """Until the input ends; `train_step` makes one update and returns the batch's target tokens."""
    done = 0
    for line in sys.stdin:
        started, cpu_started, tokens = time.perf_counter(), time.process_time(), 0
        for _ in range(int(line)):
            tokens += train_step(batches[done % len(batches)])
            done += 1
        answer = {
            "tokens": tokens,
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu_started,
        }
        print(json.dumps(answer), flush=True)
