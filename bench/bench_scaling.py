"""Whether cost grows as it should: tokens a second and memory by the number of training pairs, and by their length.

Text is made up, so that there can be millions of pairs: what the words are does not matter to the time. The rest is
the product's own: shards mapped from disk, the plan of batches, the kernels. Every case has a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from echelon.data.batches import BatchPlan, PackedPairs
from echelon.data.prepared import PairStore, Side
from echelon.models.fast import hidden_states
from echelon.models.kernels.calls import Kernels
from echelon.models.loss import summed_loss
from echelon.models.sequences import Sequences, shift_right
from echelon.models.transformer import Dropouts, Transformer
from echelon.shapes.transformer import PRESETS, TransformerShape
from echelon.train.flat import FlatParameters

VOCABULARY = 8000
PAIRS = (10_000, 100_000, 1_000_000, 4_500_000)
LENGTHS = (10, 25, 50, 100, 200)
SLOT_TOKENS = 4096
BOS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=12)
    slots: int = parser.parse_args().slots
    rates = {pairs: in_own_process(by_pairs, pairs, slots) for pairs in PAIRS}
    first_rate, first_memory = rates[PAIRS[0]]
    print("  pairs      target tokens/s   ratio   bytes of memory a pair more")
    for pairs, (rate, memory) in rates.items():
        growth = (memory - first_memory) / (pairs - PAIRS[0]) if pairs > PAIRS[0] else 0.0
        print(f"{pairs:>9,}{rate:>15,.0f}{rate / first_rate:>13.2f}{growth:>18.1f}")
    print("\n length      target tokens/s")
    for length in LENGTHS:
        rate, _ = in_own_process(by_length, length, slots)
        print(f"{length:>7,}{rate:>17,.0f}")


def by_pairs(pairs: int, slots: int) -> tuple[float, int]:
    """Lengths like those of real text, whatever their number."""
    chance = np.random.default_rng(1)
    lengths = np.clip(np.exp(chance.normal(3.0, 0.5, pairs)), 3, 100).astype(np.uint32)
    return train(lengths, slots)


def by_length(length: int, slots: int) -> tuple[float, int]:
    return train(np.full(20_000, length, np.uint32), slots)


def train(lengths: NDArray[np.uint32], slots: int) -> tuple[float, int]:
    """Target tokens a second over some slots, and bytes of memory that are this process's own."""
    torch.set_num_threads(1)
    kernels, model = (
        Kernels(),
        Transformer(TransformerShape(VOCABULARY, **PRESETS["small"]), Dropouts(0.1, 0.1, 0.1)),
    )
    flat = FlatParameters(model)
    with tempfile.TemporaryDirectory() as folder:
        store = PairStore(
            (made_up_side(lengths, Path(folder) / "s"), made_up_side(lengths, Path(folder) / "t"))
        )
        plan = BatchPlan([store], [1.0], batch_tokens=SLOT_TOKENS, slots=1, max_tokens=256, seed=1)
        rates = list(train_slots(kernels, model, plan, slots))
        assert flat.gradients.isfinite().all()
    return statistics.median(rates[2:]), own_memory_bytes()


def train_slots(kernels: Kernels, model: Transformer, plan: BatchPlan, slots: int) -> Iterator[float]:
    """The rate of each slot: planning, loading, forward and backward."""
    for number in range(slots):
        started = time.perf_counter()
        (slot,) = plan.step(number).slots
        source, target = as_sequences(plan.load(slot))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = hidden_states(kernels, model, source, shift_right(target, BOS))
            loss = summed_loss(hidden, model.embeddings.output_VD, target.tokens, 0.1, kernels)
        loss.smoothed.backward()  # type: ignore[no-untyped-call]
        yield slot.target_tokens / (time.perf_counter() - started)


def as_sequences(pairs: PackedPairs) -> tuple[Sequences, Sequences]:
    source = Sequences(torch.from_numpy(pairs.source), torch.from_numpy(pairs.source_offsets))
    return source, Sequences(torch.from_numpy(pairs.target), torch.from_numpy(pairs.target_offsets))


def made_up_side(lengths: NDArray[np.uint32], path: Path) -> Side:
    """Random tokens in files, mapped as prepared shards are."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
    tokens = np.random.default_rng(2).integers(4, VOCABULARY, int(offsets[-1]), dtype=np.uint16)

    def mapped(name: str, array: NDArray[np.generic]) -> NDArray[np.generic]:
        file = path.with_suffix(name)
        array.tofile(file)
        return np.memmap(file, array.dtype, "r")

    return Side(mapped(".tokens", tokens), mapped(".lengths", lengths), mapped(".offsets", offsets))  # type: ignore[arg-type]


def own_memory_bytes() -> int:
    """Memory that is not a file's: mapped shards belong to the system's cache."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def in_own_process(function: object, *arguments: int) -> tuple[float, int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result: tuple[float, int] = pool.apply(function, arguments)  # type: ignore[arg-type]
        return result


if __name__ == "__main__":
    main()
