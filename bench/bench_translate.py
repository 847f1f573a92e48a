"""Translating the Multi30k test set with a beam of 4: our beam search and CTranslate2 against Hugging Face generate.

All have the same weights, two threads and the same lines in batches of like length; they take turns, 100 lines at a
time, and the sums of their times are compared. Hugging Face lives in an environment of its own under the cache, made at
the first run. The run is made by `echelon train bench/multi30k-base.toml` (or is any other, pre-norm and tied). On a
machine that does other work meanwhile, `--threads 1 --clock cpu` counts the processor's time. Usage:
    python -m bench.bench_translate [--run runs/multi30k-base] [--lines 1000] [--threads 2] [--clock wall|cpu]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from bench.peers.contenders import GENERATE, install, python_of
from rich.console import Console
from sacrebleu.metrics.bleu import BLEU

from echelon.data.corpora import LineReader, resolve
from echelon.data.tokeniser import EOS, Tokeniser
from echelon.export.export import export_run
from echelon.export.export_folder import ExportOptions
from echelon.inference.model_folder import recipe_decoding, text_rules
from echelon.inference.torch_engine import TorchEngine
from echelon.inference.torch_models import build_model
from echelon.inference.translator import Translator
from echelon.recipe.loading import load_translation_recipe
from echelon.runfolder import RunFolder
from echelon.train.precision import Precision
from echelon.train.weights import choose_weights

PEER = Path(__file__).parent / "peers" / "hugging_face_generate.py"
CHUNK, PEER_BATCH = 100, 64
Translate = Callable[[list[str]], tuple[list[str], float]]


class HuggingFace:
    """The peer: a process with the same weights."""

    def __init__(self, run: RunFolder, place: Path, threads: int, clock: str) -> None:
        recipe = load_translation_recipe(run.recipe)
        self._tokeniser = Tokeniser.load(run.tokeniser)
        model = build_model(recipe, self._tokeniser.size, choose_weights(run, "last"))
        place.mkdir()
        safetensors.torch.save_file(dict(model.state_dict()), place / "model.safetensors")
        (place / "shape.json").write_text(json.dumps(asdict(model.shape)))
        install(GENERATE, Console(stderr=True))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            [python_of(GENERATE), PEER, place, str(threads), clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment | {"OMP_NUM_THREADS": str(threads)},
        )
        self._read()

    def __call__(self, lines: list[str]) -> tuple[list[str], float]:
        tokens = [[*ids, EOS] for ids in self._tokeniser.encode(lines)]
        order = sorted(range(len(lines)), key=lambda index: -len(tokens[index]))
        batches = [
            [tokens[index] for index in order[start : start + PEER_BATCH]]
            for start in range(0, len(order), PEER_BATCH)
        ]
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"batches": batches}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        outputs = [""] * len(lines)
        for index, text in zip(order, self._tokeniser.decode(answer["outputs"]), strict=True):
            outputs[index] = text
        return outputs, float(answer["seconds"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def timed(translator: Translator, kind: str) -> Translate:
    clock = time.process_time if kind == "cpu" else time.perf_counter

    def translate(lines: list[str]) -> tuple[list[str], float]:
        started = clock()
        outputs = [str(found) for found in translator.translate(lines)]
        return outputs, clock() - started

    return translate


def contenders(run: RunFolder, place: Path, threads: int, clock: str) -> dict[str, Translate]:
    recipe = load_translation_recipe(run.recipe)
    tokeniser = Tokeniser.load(run.tokeniser)
    cpu = torch.device("cpu")
    plain = TorchEngine(
        build_model(recipe, tokeniser.size, choose_weights(run, "last")), Precision("float32", cpu), cpu
    )
    for precision in ("float32", "int8"):
        export_run(run, ExportOptions("ctranslate2", place / precision, precision, "last"))
    return {
        "Hugging Face generate, float32": HuggingFace(run, place / "peer", threads, clock),
        "Echelon, PyTorch float32": timed(
            Translator(plain, tokeniser, text_rules(recipe), recipe_decoding(recipe)), clock
        ),
        "Echelon, PyTorch bf16": timed(Translator.load(run.path, checkpoint="last"), clock),
        "CTranslate2 float32": timed(Translator.load(place / "float32", threads=threads), clock),
        "CTranslate2 int8": timed(Translator.load(place / "int8", threads=threads), clock),
    }


def test_set(lines: int) -> tuple[list[str], list[str]]:
    paths = [resolve(f"multi30k/raw/test_2016_flickr.{side}.gz", Path()) for side in ("en", "de")]
    english, german = ([line.decode() for line in LineReader(path)][:lines] for path in paths)
    return english, german


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path("runs/multi30k-base"))
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    if not RunFolder(options.run).recipe.is_file():
        print(f"left out: there is no {options.run}; `echelon train bench/multi30k-base.toml` makes it")
        return
    torch.set_num_threads(options.threads)
    english, german = test_set(options.lines)
    with tempfile.TemporaryDirectory() as place:
        every = contenders(RunFolder(options.run).require(), Path(place), options.threads, options.clock)
        seconds = dict.fromkeys(every, 0.0)
        outputs: dict[str, list[str]] = {name: [] for name in every}
        for translate in every.values():
            translate(english[:16])  # warms up
        for start in range(0, len(english), CHUNK):
            for name, translate in every.items():
                found, took = translate(english[start : start + CHUNK])
                outputs[name] += found
                seconds[name] += took
            so_far = ", ".join(f"{name} {took:.1f} s" for name, took in seconds.items())
            print(f"{start + CHUNK} lines: {so_far}", file=sys.stderr)
        for translate in every.values():
            if isinstance(translate, HuggingFace):
                translate.stop()
    first = next(iter(seconds.values()))
    for name, took in seconds.items():
        bleu = BLEU().corpus_score(outputs[name], [german]).score
        print(f"{name:<32}{len(english) / took:>8.1f} sentences/s{first / took:>8.2f} x{bleu:>8.2f} BLEU")


if __name__ == "__main__":
    main()
