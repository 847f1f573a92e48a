"""WMT at its size: 4.5 million pairs prepared, stage by stage, against sentencepiece, and 50 steps trained from them.

The pairs are made from real ones (Tatoeba, Multi30k, a sample of WMT's mix and its news tests): sentences are joined to
WMT's lengths, numbers are drawn anew, and now and then a word is put together from parts of two others, so that the
number of distinct words grows as it does in real text. The peer is the sentencepiece package with the same settings and
two threads, given both languages at once: it learns from the text that cleaning left, and encodes it.

It learns from every word; ours counts at most 2^20 distinct words at a time, learns from the 2^19 most frequent ones,
and gives characters at most 1/32 of the vocabulary, which bounds its memory. How many pieces both have is printed.

    python bench/bench_wmt_size.py                                # 4.5 million pairs
    python bench/bench_wmt_size.py --pairs 300000 --steps 0       # a short form

Peak memory is that of all processes of `prepare` together (their proportional share of what they share).
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import psutil
import sentencepiece

from echelon.commands.benchmark import benchmark
from echelon.commands.training import TrainOptions
from echelon.data.batch_plan import plan_batches
from echelon.data.prepare import prepare
from echelon.data.prepared import Prepared
from echelon.data.progress import Progress
from echelon.data.tokeniser import BOS, EOS, PAD, UNK
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import TranslationRecipe

RECIPE = Path(__file__).parents[1] / "recipes" / "wmt16-en-de-base.toml"
THREADS = 2
MADE_AT_A_TIME = 20_000
ENCODED_AT_A_TIME = 200_000
SAMPLE_S = 0.5
MOST_BYTES = 2e9
LEAST_RATIOS = {"vocabulary": 1.0, "encoding": 1.5, "cleaning and encoding": 1.0}
"""How many times as fast as the peer we must be."""


@dataclass
class Seconds:
    """How long each stage took; a stage ends when the next begins."""

    by_stage: dict[str, float] = field(default_factory=dict)
    _stage: str = ""
    _since: float = 0.0

    def begin(self, stage: str) -> None:
        now = time.perf_counter()
        if stage != self._stage:
            if self._stage:
                self.by_stage[self._stage] = self.by_stage.get(self._stage, 0.0) + now - self._since
            self._stage, self._since = stage, now

    def told(self, progress: Progress) -> None:
        self.begin(progress.stage)


class PeakMemory:
    """The most memory that this process and its children have had together, sampled."""

    def __init__(self) -> None:
        self.bytes = 0
        self._ended = threading.Event()

    def __enter__(self) -> PeakMemory:
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.bytes = max(self.bytes, self._now())

    def _now(self) -> int:
        own = psutil.Process()
        total = 0
        for process in [own, *own.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=4_500_000)
    parser.add_argument("--steps", type=int, default=50, help="training steps; 0 leaves them out")
    parser.add_argument(
        "--batch-tokens", type=int, default=4096, help="of a step; the recipe's are for 4 GPUs"
    )
    parser.add_argument("--folder", type=Path, help="keep the pairs there, and find them again")
    parser.add_argument("--json", type=Path, help="write the figures there")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="echelon-size-"))
    try:
        figures = measure(folder, options)
    finally:
        if options.folder is None:
            shutil.rmtree(folder)
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    recipe = make_corpus(folder, options.pairs)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    seconds = Seconds()
    with PeakMemory() as memory:
        prepared = prepare(
            load_translation(recipe).data, recipe_folder=folder, cache=folder / "cache", progress=seconds.told
        )
        seconds.begin("")
    figures: dict[str, Any] = {
        "pairs": options.pairs,
        "seconds": seconds.by_stage,
        "peak_bytes": memory.bytes,
    }
    show_stages(prepared, seconds, memory)
    figures |= compare(folder, prepared, seconds)
    for line in verdicts(figures):
        print(line)
    if options.steps:
        figures |= train(recipe, prepared, options.steps, options.batch_tokens, folder)
    return figures


def load_translation(path: Path, settings: Sequence[str] = ()) -> TranslationRecipe:
    recipe = load_recipe(path, settings)
    assert isinstance(recipe, TranslationRecipe)
    return recipe


# --- the pairs ---


def make_corpus(folder: Path, pairs: int) -> Path:
    """Write the text, unless it is there, and a recipe for it; the recipe's path."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [folder / f"train-{pairs}.{side}.gz" for side in ("en", "de")]
    if not all(name.exists() for name in names):
        print(f"making {pairs:,} pairs ...", flush=True)
        sizes = [min(MADE_AT_A_TIME, pairs - start) for start in range(0, pairs, MADE_AT_A_TIME)]
        with ProcessPoolExecutor(THREADS) as pool, whole_files(names) as (english, german):
            for source, target in pool.map(made_pairs, range(len(sizes)), sizes):
                english.write(source)
                german.write(target)
    text = RECIPE.read_text()
    head, tail = text[: text.index("[[data.download]]")], text[text.index("[model]") :]
    wmt = Path(os.environ["ECHELON_DATA"]) / "wmt"
    corpora = f'[[data.train]]\nsource = "{names[0].name}"\ntarget = "{names[1].name}"\n\n'
    for split, year in (("valid", 2013), ("test", 2014)):
        corpora += f'[data.{split}]\nsource = "{wmt}/newstest{year}.en.gz"\ntarget = "{wmt}/newstest{year}.de.gz"\n\n'
    recipe = folder / "recipe.toml"
    recipe.write_text(head + corpora + tail)
    return recipe


@contextmanager
def whole_files(names: list[Path]) -> Iterator[list[BinaryIO]]:
    """Compressed files that get their names only when they are whole."""
    with ExitStack() as closing:
        yield [
            cast(BinaryIO, closing.enter_context(gzip.open(f"{name}.partial", "wb", compresslevel=1)))
            for name in names
        ]
    for name in names:
        Path(f"{name}.partial").rename(name)


Pair = tuple[list[str], list[str]]
_STOCK: dict[str, list[Pair]] = {}


def stock() -> dict[str, list[Pair]]:
    """Real pairs as words: long ones of WMT, short ones of the others. Loaded once a process."""
    if not _STOCK:
        data = Path(os.environ["ECHELON_DATA"])
        sets = {
            "long": ["wmt/sample10k", "wmt/newstest2013", "wmt/newstest2014"],
            "short": ["tatoeba/train", "multi30k/raw/train"],
        }
        for kind, names in sets.items():
            _STOCK[kind] = [pair for name in names for pair in read_pairs(data / name)]
    return _STOCK


def read_pairs(path: Path) -> Iterator[Pair]:
    sides = [
        gzip.decompress(Path(f"{path}.{side}.gz").read_bytes()).decode().split("\n") for side in ("en", "de")
    ]
    for source, target in zip(*sides, strict=True):
        if source.strip() and target.strip():
            yield source.split(), target.split()


def made_pairs(seed: int, count: int) -> tuple[bytes, bytes]:
    """So many varied pairs, the same for the same seed."""
    dice = random.Random(seed)
    source, target = [], []
    for _ in range(count):
        english, german = varied(dice)
        source.append(" ".join(english))
        target.append(" ".join(german))
    return "\n".join([*source, ""]).encode(), "\n".join([*target, ""]).encode()


def varied(dice: random.Random) -> Pair:
    """Half of a long sentence and half of another, or two to four short ones, with words and numbers changed."""
    pairs = stock()
    if dice.random() < 0.6:
        chosen = [half(dice.choice(pairs["long"]), dice.random() < 0.5) for _ in range(2)]
    else:
        chosen = [dice.choice(pairs["short"]) for _ in range(dice.randint(2, 4))]
    sides = [[word for pair in chosen for word in pair[side]] for side in (0, 1)]
    for side, words in enumerate(sides):
        for index in range(len(words)):
            if dice.random() < 0.03:
                words[index] = compound(dice, words[index], side)
            elif words[index].isdigit():
                words[index] = str(dice.randrange(10 ** len(words[index])))
    return sides[0], sides[1]


def half(pair: Pair, first: bool) -> Pair:
    middle = [len(words) // 2 for words in pair]
    cut = [slice(0, end) if first else slice(end, None) for end in middle]
    return pair[0][cut[0]], pair[1][cut[1]]


def compound(dice: random.Random, word: str, side: int) -> str:
    """The beginning of a word and the end of another one of the language."""
    other = dice.choice(dice.choice(stock()["long"])[side] or [word])
    return word[: (len(word) + 1) // 2] + re.sub(r"^\W+", "", other[len(other) // 2 :])


# --- what is compared ---


def show_stages(prepared: Prepared, seconds: Seconds, memory: PeakMemory) -> None:
    entry = prepared.manifest.corpora[0]
    print(
        f"\n{entry.lines:,} pairs read, {entry.pairs:,} kept, {prepared.manifest.vocabulary:,} pieces, {THREADS} cores:"
    )
    for stage, took in seconds.by_stage.items():
        print(f"  {stage:<12}{took:>8.1f} s")
    print(
        f"  {'in all':<12}{sum(seconds.by_stage.values()):>8.1f} s, peak memory {memory.bytes / 1e9:.2f} GB"
    )


def compare(folder: Path, prepared: Prepared, seconds: Seconds) -> dict[str, Any]:
    """The peer on the same text; ratios above 1 are in our favour."""
    text = [folder / f"peer.{side}" for side in ("en", "de")]
    write_clean_text(folder, prepared, text)
    peer_learns = timed(partial(learn, text, folder / "peer", prepared.manifest.vocabulary))
    peer_encodes = timed(partial(encode, text, prepared.tokeniser_path))
    ours = seconds.by_stage
    learns = ours["count"] + ours["vocabulary"]
    ratios = {
        "vocabulary": peer_learns / learns,
        "encoding": peer_encodes / ours["encode"],
        "cleaning and encoding": peer_encodes / (ours["clean"] + ours["encode"]),
    }
    print(
        f"\nsentencepiece, {THREADS} threads: learns in {peer_learns:.1f} s, encodes in {peer_encodes:.1f} s"
    )
    for name, ratio in ratios.items():
        print(f"  {name:<24}{ratio:>6.2f} times as fast")
    pieces = pieces_of(prepared.tokeniser_path)
    shared = len(pieces & pieces_of(folder / "peer.model"))
    print(f"  {shared:,} of our {len(pieces):,} pieces are the peer's too")
    for path in text:
        path.unlink()
    return {
        "peer": {"learns": peer_learns, "encodes": peer_encodes},
        "ratios": ratios,
        "pieces": len(pieces),
        "shared_pieces": shared,
    }


def pieces_of(model: Path) -> set[str]:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return {processor.id_to_piece(number) for number in range(processor.get_piece_size())}


def verdicts(figures: dict[str, Any]) -> Iterator[str]:
    """A line for each limit: whether it is kept."""

    def line(is_kept: bool, text: str) -> str:
        return f"{'kept  ' if is_kept else 'MISSED'}  {text}"

    peak = figures["peak_bytes"]
    yield line(peak < MOST_BYTES, f"peak memory {peak / 1e9:.2f} GB, limit {MOST_BYTES / 1e9:.0f} GB")
    for name, least in LEAST_RATIOS.items():
        ratio = figures["ratios"][name]
        yield line(ratio >= least, f"{name} {ratio:.2f} times as fast, limit {least}")


def timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def write_clean_text(folder: Path, prepared: Prepared, paths: list[Path]) -> None:
    """What cleaning left, decoded from the shards: the text that both sides learn from and encode."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(prepared.tokeniser_path))
    for side, path in enumerate(paths):
        tokens, offsets = prepared.train[0].sides[side].tokens, prepared.train[0].sides[side].offsets
        with path.open("w", encoding="utf-8") as file:
            for start in range(0, len(offsets) - 1, ENCODED_AT_A_TIME):
                ends = offsets[start : start + ENCODED_AT_A_TIME + 1].tolist()
                ids = [tokens[a:b].tolist() for a, b in pairwise(ends)]
                file.writelines(f"{line}\n" for line in processor.decode(ids, num_threads=THREADS))


def learn(text: list[Path], model: Path, vocabulary: int) -> None:
    sentencepiece.SentencePieceTrainer.train(
        input=[str(path) for path in text],
        model_prefix=str(model),
        model_type="bpe",
        vocab_size=vocabulary,
        character_coverage=1.0,
        normalization_rule_name="identity",
        max_sentence_length=100_000,
        pad_id=PAD,
        eos_id=EOS,
        bos_id=BOS,
        unk_id=UNK,
        num_threads=THREADS,
        hard_vocab_limit=False,
        minloglevel=2,
    )


def encode(text: list[Path], model: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for path in text:
        with path.open(encoding="utf-8") as file:
            while lines := [line.rstrip("\n") for line in islice(file, ENCODED_AT_A_TIME)]:
                processor.encode(lines, num_threads=THREADS)


# --- training from them ---


def train(recipe: Path, prepared: Prepared, steps: int, batch_tokens: int, folder: Path) -> dict[str, Any]:
    """Steps of the base model, and what planning and reading batches take of them."""
    settings = [f"train.batch_tokens={batch_tokens}", "train.slots=2"]
    os.environ["ECHELON_CACHE"] = str(folder / "cache")
    loaded = load_translation(recipe, settings)
    planning = timed(lambda: plan_batches(loaded, prepared).step(0))
    from rich.console import Console

    result = benchmark(
        TrainOptions(recipe, None, None, [*settings, "train.workers=2"]), steps, Console(stderr=True)
    )
    data, step = result["breakdown"]["data"], result["seconds_per_step"]
    print(f"\n{steps} steps of the base recipe, {batch_tokens:,} tokens each, two workers:")
    print(f"  {result['tokens_per_second']:,.0f} target tokens/s, {step:.2f} s a step")
    print(f"  planning the epoch and the first step: {planning:.2f} s, once")
    print(f"  planning and reading batches: {1000 * data:.1f} ms a step, {100 * data / step:.2f}% of it")
    return {"training": {"planning_s": planning, **result}}


if __name__ == "__main__":
    if "ECHELON_DATA" in os.environ:
        main()
    else:
        print("left out: set ECHELON_DATA to the folder that holds tatoeba/, multi30k/ and wmt/")
