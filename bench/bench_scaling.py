"""Whether cost grows as it should: tokens a second and memory by the number of training pairs, and by their length.

Text is made up, so that there can be millions of pairs: what the words are does not matter to the time. The rest is
the product: a worker as its launcher starts it, shards mapped from disk, the plan of batches, whole steps. Every case
has a worker of its own. Usage, with the machine idle:
    python -m bench.bench_scaling [--steps 12]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from bench.peers import contenders
from numpy.typing import NDArray

from echelon.data.prepare import default_cache, prepare
from echelon.data.prepared import MANIFEST, Prepared, open_prepared
from echelon.data.shards import LENGTH_TYPE, OFFSET_TYPE, FileEntry, SideCount
from echelon.data.tokeniser import TOKEN_TYPE
from echelon.recipe.loading import load_translation_recipe
from echelon.recipe.schema import TranslationRecipe

DEMO = Path(__file__).parents[1] / "recipes" / "demo.toml"
PAIRS = (10_000, 100_000, 1_000_000, 4_500_000)
LENGTHS = (10, 25, 50, 100, 200)
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Measured:
    """One worker's training."""

    tokens_per_second: float
    most_memory_bytes: int
    """The most that was ever resident, pages of mapped files included."""
    own_memory_bytes: int
    """What was resident at the end, without those pages."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    steps: int = parser.parse_args().steps
    by_pairs = {pairs: train(lengths_like_text(pairs), steps) for pairs in PAIRS}
    first = by_pairs[PAIRS[0]]
    print("  pairs      target tokens/s   ratio   bytes a pair more: own   at most, with mapped files")
    for pairs, found in by_pairs.items():
        more = max(1, pairs - PAIRS[0])
        own = (found.own_memory_bytes - first.own_memory_bytes) / more
        most = (found.most_memory_bytes - first.most_memory_bytes) / more
        ratio = found.tokens_per_second / first.tokens_per_second
        print(f"{pairs:>9,}{found.tokens_per_second:>15,.0f}{ratio:>13.2f}{own:>22.1f}{most:>20.1f}")
    print("\n length      target tokens/s")
    for length in LENGTHS:
        found = train(np.full(20_000, length, LENGTH_TYPE), steps)
        print(f"{length:>7,}{found.tokens_per_second:>17,.0f}")


def lengths_like_text(pairs: int) -> NDArray[np.uint32]:
    chance = np.random.default_rng(1)
    return np.clip(np.exp(chance.normal(3.0, 0.5, pairs)), 3, 100).astype(LENGTH_TYPE)


def train(lengths: NDArray[np.uint32], steps: int) -> Measured:
    """One worker of one thread trains Transformer-small; the median of its steps."""
    recipe = small_recipe()
    prepared = prepare(recipe.data, recipe_folder=DEMO.parent, cache=default_cache())
    with tempfile.TemporaryDirectory(prefix="bench-scaling-") as folder:
        made_up = with_made_up_pairs(prepared, lengths, Path(folder) / "prepared")
        material = contenders.Material(recipe, made_up, Path(folder))
        worker = contenders.echelon(material, "worker", slots=material.recipe.train.slots)
        try:
            worker.train(WARM_UP_STEPS)
            answers = [worker.train(1) for _ in range(steps)]
        finally:
            worker.close()
    return Measured(
        statistics.median(answer["tokens"] / answer["seconds"] for answer in answers),
        answers[-1]["most_memory_bytes"],
        answers[-1]["own_memory_bytes"],
    )


def small_recipe() -> TranslationRecipe:
    """What the peers are compared with, on the tokeniser and the validation set of the embedded corpus."""
    settings = ["model.preset=small", "train.slots=1", "train.workers=1", "data.max_tokens=256"]
    recipe = load_translation_recipe(contenders.RECIPE, settings)
    demo = load_translation_recipe(DEMO, ["data.vocabulary=8000", "data.max_tokens=256"])
    return recipe.model_copy(update={"data": demo.data})


def with_made_up_pairs(prepared: Prepared, lengths: NDArray[np.uint32], folder: Path) -> Prepared:
    """A copy whose training pairs are random tokens, both sides being of the given lengths."""
    shutil.copytree(prepared.folder, folder)
    offsets = np.concatenate([np.zeros(1, OFFSET_TYPE), np.cumsum(lengths, dtype=OFFSET_TYPE)])
    count = int(offsets[-1])
    sizes: dict[str, int] = {}
    for side in ("source", "target"):
        tokens = np.random.default_rng(2).integers(4, prepared.manifest.vocabulary, count, dtype=TOKEN_TYPE)
        for kind, array in (("tokens", tokens), ("lengths", lengths), ("offsets", offsets)):
            file = folder / f"train-0.{side}.{kind}"
            array.tofile(file)
            sizes[file.name] = array.nbytes
    tokens_of_side = SideCount(tokens=count)
    manifest = replace(
        prepared.manifest,
        corpora=tuple(
            replace(
                corpus,
                lines=len(lengths),
                pairs=len(lengths),
                source=tokens_of_side,
                target=tokens_of_side,
            )
            if corpus.name == "train-0"
            else corpus
            for corpus in prepared.manifest.corpora
        ),
        files=tuple(
            FileEntry(entry.name, sizes.get(entry.name, entry.bytes), entry.sha256)
            for entry in prepared.manifest.files
        ),
    )
    (folder / MANIFEST).write_bytes(manifest.to_json())
    return open_prepared(folder)


if __name__ == "__main__":
    main()
