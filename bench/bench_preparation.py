"""Encoding text against the sentencepiece package: lines a second on two cores, and that the ids are equal."""

from __future__ import annotations

import argparse
import gzip
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import sentencepiece

from echelon.data.cleaning import normalise
from echelon.data.corpora import resolve
from echelon.data.prepare import default_cache, prepare
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.errors import DataError
from echelon.recipe.loading import load_translation_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "multi30k.toml"
LINES_AT_A_TIME = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--text", default="tatoeba/train.en.gz", help="under ECHELON_DATA")
    options = parser.parse_args()
    recipe = load_translation_recipe(RECIPE)
    try:
        model = prepare(recipe.data, recipe_folder=RECIPE.parent, cache=default_cache()).tokeniser_path
        lines = read_lines(resolve(options.text, Path()), options.lines)
    except DataError as error:
        print(f"left out: {error}")
        return
    parts = [lines[start : start + LINES_AT_A_TIME] for start in range(0, len(lines), LINES_AT_A_TIME)]
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(partial(encode, model), [part[:100] for part in parts]))  # starts the processes
        started = time.perf_counter()
        tokens = sum(pool.map(partial(encode, model), parts))
        ours = len(lines) / (time.perf_counter() - started)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    started = time.perf_counter()
    encoded = processor.encode(lines, num_threads=cores)
    theirs = len(lines) / (time.perf_counter() - started)
    assert tokens == sum(len(ids) + 1 for ids in encoded), "not the same tokens"
    assert Tokeniser.load(model).encode(lines) == encoded, "not the same ids"
    distinct = len(set(lines))
    print(f"{len(lines):,} lines, {distinct:,} of them different, on {cores} cores, the ids being equal")
    print(f"(end of sentence {EOS} added):")
    print(f"  Echelon        {ours:>10,.0f} lines/s")
    print(f"  sentencepiece  {theirs:>10,.0f} lines/s ({ours / theirs:.1f} times as fast)")


def encode(model: Path, lines: list[str]) -> int:
    return len(tokeniser(model).encode_in_a_row(lines))


def tokeniser(model: Path) -> Tokeniser:
    if model not in LOADED:
        LOADED[model] = Tokeniser.load(model)
    return LOADED[model]


LOADED: dict[Path, Tokeniser] = {}


def read_lines(path: Path, count: int) -> list[str]:
    """So many normalised lines; the text over again where it has fewer."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        text = [line for line in (normalise(line, "NFC") for line in file) if line]
    return (text * (count // len(text) + 1))[:count]


if __name__ == "__main__":
    main()
