"""Training steps of the demo's model against a plain torch.nn.Transformer loop on the same batches, in one run.

Contenders alternate and medians are compared; the ratios hold where absolute figures drift. Usage:
    python bench/bench_training.py [--rounds 7] [--threads 2]
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from echelon.data.prepare import default_cache, prepare
from echelon.data.tokeniser import BOS, PAD
from echelon.models.sequences import Sequences, shift_right
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe
from echelon.recipe.sizes import model_sizes
from echelon.tasks.translation import TranslationBatch, TranslationTask
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
CPU = torch.device("cpu")
Step = Callable[[list[TranslationBatch]], None]


class PlainTransformer(nn.Module):
    """What the torch tutorial would have one write: padded rectangles, nn.Transformer, tied output."""

    def __init__(self, recipe: TranslationRecipe, vocabulary: int) -> None:
        super().__init__()
        sizes = model_sizes(recipe.model)
        self.embedding = nn.Embedding(vocabulary, sizes["d_model"], padding_idx=PAD)
        self.scale = math.sqrt(sizes["d_model"])
        self.transformer = nn.Transformer(
            sizes["d_model"],
            sizes["heads"],
            sizes["encoder_layers"],
            sizes["decoder_layers"],
            sizes["d_ff"],
            dropout=recipe.model.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.register_buffer("positions_LD", torch.randn(256, sizes["d_model"]), persistent=False)

    def forward(self, source_BL: Tensor, target_BL: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(target_BL.shape[1])
        hidden: Tensor = self.transformer(
            self.embed(source_BL),
            self.embed(target_BL),
            tgt_mask=causal,
            src_key_padding_mask=source_BL == PAD,
            memory_key_padding_mask=source_BL == PAD,
            tgt_is_causal=True,
        )
        return hidden @ self.embedding.weight.T

    def embed(self, tokens_BL: Tensor) -> Tensor:
        positions_LD: Tensor = self.get_buffer("positions_LD")
        embedded: Tensor = self.embedding(tokens_BL)
        return embedded * self.scale + positions_LD[: tokens_BL.shape[1]]


def padded(sequences: Sequences) -> Tensor:
    return pad_sequence(
        list(torch.split(sequences.tokens, list(sequences.lengths))), batch_first=True, padding_value=PAD
    )


def plain_step(
    recipe: TranslationRecipe, vocabulary: int, precision: Callable[[], AbstractContextManager[object]]
) -> Step:
    torch.manual_seed(1)
    model = PlainTransformer(recipe, vocabulary)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98))
    smoothing = recipe.train.label_smoothing

    def step(batches: list[TranslationBatch]) -> None:
        targets = sum(len(batch.target.tokens) for batch in batches)
        optimiser.zero_grad()
        for batch in batches:
            with precision():
                logits_BLV = model(padded(batch.source), padded(shift_right(batch.target, BOS)))
                loss = nn.functional.cross_entropy(
                    logits_BLV.flatten(0, 1),
                    padded(batch.target).flatten(),
                    ignore_index=PAD,
                    label_smoothing=smoothing,
                    reduction="sum",
                )
            (loss / targets).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def echelon_step(recipe: TranslationRecipe, task: TranslationTask) -> Step:
    torch.manual_seed(1)
    model = task.build_model()
    flat = FlatParameters(model)
    optimiser = FlatOptimiser(recipe.optimiser, flat)

    def step(batches: list[TranslationBatch]) -> None:
        targets = sum(len(batch.target.tokens) for batch in batches)
        flat.zero()
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = task.loss(model, batch)
            (loss.smoothed / targets).backward()  # type: ignore[no-untyped-call]
        norm = float(torch.linalg.vector_norm(flat.gradients))
        if norm > 1.0:
            flat.gradients.mul_(1.0 / norm)
        optimiser.step(1e-4)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = load_translation_recipe(RECIPE)
    prepared = prepare(recipe.data, recipe_folder=RECIPE.parent, cache=default_cache())
    task = TranslationTask(recipe, prepared, CPU)
    vocabulary = prepared.manifest.vocabulary
    contenders = {
        "plain nn.Transformer, float32": plain_step(recipe, vocabulary, nullcontext),
        "plain nn.Transformer, bf16": plain_step(
            recipe, vocabulary, lambda: torch.autocast("cpu", dtype=torch.bfloat16)
        ),
        "Echelon, bf16": echelon_step(recipe, task),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(1, options.rounds + 2):
        slots = task.slots(number)
        batches = [task.load(slot) for slot in slots]
        for name, step in contenders.items():
            started = time.perf_counter()
            step(batches)
            if number > 1:  # the first round warms up
                rates[name].append(sum(slot.targets for slot in slots) / (time.perf_counter() - started))
    first = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"{name:<32}{median:>8,.0f} target tokens/s{median / first:>8.2f} x")


if __name__ == "__main__":
    main()
