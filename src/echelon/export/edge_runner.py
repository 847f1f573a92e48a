#!/usr/bin/env python3
"""Translate with the model in this folder: lines from stdin to stdout, or the words given.

    python3 translate.py "The dog sleeps."
    python3 translate.py --n-best 3 < english.txt > german.txt

Needs sentencepiece, numpy and, whichever the model was exported for, ctranslate2 or onnxruntime: see requirements.txt.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import unicodedata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

EOS, BOS = 1, 2
NEVER = [0, 2, 3]  # padding, beginning of sentence, unknown
LINES_AT_A_TIME, BATCH = 256, 32
ScoredSentence = tuple[list[int], float]
Alternatives = list[tuple[str, float]]
SENTENCE_END = re.compile(r"(?<=[.!?…])[\"'»”’)\]]*\s+(?=[\"'«„“‘(\[¿¡]*[^\W\d_a-zß-öø-ÿ])|(?<=[。！？])")


class CTranslate2Model:
    """Beam search by CTranslate2."""

    def __init__(self, folder: Path, threads: int, pieces: list[str]) -> None:
        import ctranslate2

        self._translator = ctranslate2.Translator(str(folder / "ctranslate2"), intra_threads=threads)
        self._pieces = pieces
        self._ids = {piece: index for index, piece in enumerate(pieces)}

    def search(
        self, sentences: list[list[int]], beam: int, penalty: float, wanted: int = 1
    ) -> list[list[ScoredSentence]]:
        """For each sentence its hypotheses with their scores, best first."""
        results = self._translator.translate_batch(
            [[self._pieces[token] for token in sentence] for sentence in sentences],
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=0,
            max_decoding_length=max(map(longest_output, sentences)),
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=[["<pad>"], ["<s>"]],
            return_scores=True,
        )
        found = []
        for sentence, result in zip(sentences, results):
            kept = [pieces[: longest_output(sentence)] for pieces in result.hypotheses]
            scored = [
                ([self._ids[piece] for piece in pieces], score / length_penalty(len(pieces) + 1, penalty))
                for pieces, score in zip(kept, result.scores)
            ]
            found.append(sorted(scored, key=lambda one: -one[1]))
        return found


class OnnxModel:
    """Encoder and decoder by ONNX Runtime, beam search by numpy."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = onnxruntime.get_available_providers()
        self._encoder, self._decoder = (
            onnxruntime.InferenceSession(str(folder / name), options, providers=providers)
            for name in ("encoder.onnx", "decoder.onnx")
        )

    def encode(self, sentences: list[list[int]]) -> dict[str, Any]:
        """What the decoder needs of the source."""
        lengths = np.array([len(sentence) for sentence in sentences])
        tokens = np.zeros((len(sentences), lengths.max()), np.int64)
        for row, sentence in enumerate(sentences):
            tokens[row, : len(sentence)] = sentence
        keys, values, bias = self._encoder.run(None, {"tokens": tokens, "lengths": lengths})
        return {"memory_keys": keys, "memory_values": values, "memory_bias": bias}

    def first_cache(self, memory: dict[str, Any], beam: int) -> dict[str, Any]:
        """The decoder's cache before the first token."""
        layers, sentences, heads, _, width = memory["memory_keys"].shape
        empty = np.zeros((layers, sentences, beam, heads, 0, width), np.float32)
        return {"keys": empty, "values": empty}

    def step(
        self, tokens: Any, position: int, memory: dict[str, Any], cache: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Read one more token of each hypothesis: log-probabilities of the next, and the cache that goes with them."""
        inputs = {"tokens": tokens, "position": np.array([position]), **memory, **cache}
        scores, keys, values = self._decoder.run(None, inputs)
        return scores, {"keys": keys, "values": values}

    def search(
        self, sentences: list[list[int]], beam: int, penalty: float, wanted: int = 1
    ) -> list[list[ScoredSentence]]:
        """For each sentence its hypotheses with their scores, best first."""
        memory = self.encode(sentences)
        cache = self.first_cache(memory, beam)
        count, limits = len(sentences), np.array([longest_output(sentence) for sentence in sentences])
        rows = np.arange(count)[:, None]
        tokens = np.full((count, beam, 1), BOS)
        scores = np.full((count, beam), -np.inf, np.float32)
        scores[:, 0] = 0
        finished: list[list[ScoredSentence]] = [[] for _ in sentences]
        for length in range(1, limits.max() + 1):
            steps, cache = self.step(tokens[:, :, -1], length - 1, memory, cache)
            steps[:, :, NEVER] = -np.inf
            vocabulary = steps.shape[2]
            totals = (scores[:, :, None] + steps).reshape(count, -1)
            best = np.argpartition(-totals, 2 * beam - 1, axis=1)[:, : 2 * beam]
            best = np.take_along_axis(
                best, np.argsort(-np.take_along_axis(totals, best, 1), 1, kind="stable"), 1
            )
            parents, newest = best // vocabulary, best % vocabulary
            values = np.take_along_axis(totals, best, 1)
            is_end = (newest == EOS) & np.isfinite(values) & (length <= limits)[:, None]
            for row, rank in zip(*np.nonzero(is_end[:, :beam])):
                ended = tokens[row, parents[row, rank], 1:].tolist()
                finished[row].append((ended, values[row, rank] / length_penalty(length, penalty)))
            unfinished = np.argsort(newest == EOS, axis=1, kind="stable")[:, :beam]
            parents, newest, scores = (
                np.take_along_axis(a, unfinished, 1) for a in (parents, newest, values)
            )
            tokens = np.concatenate([tokens[rows, parents], newest[:, :, None]], axis=2)
            cache = {name: array[:, rows, parents] for name, array in cache.items()}
            for row in np.flatnonzero(limits == length):
                cut = scores[row] / length_penalty(length, penalty)
                finished[row] = finished[row] or list(zip(tokens[row, :, 1:].tolist(), cut.tolist()))
            at_best = scores[:, 0] / [
                max(length_penalty(n, penalty) for n in (length + 1, limit)) for limit in limits
            ]
            is_over = [
                len(done) >= beam or nth_best(done, wanted) >= at_best[row]
                for row, done in enumerate(finished)
            ]
            if np.all(is_over | (length >= limits)):
                break
        return [sorted(done, key=lambda one: -one[1]) for done in finished]


def nth_best(found: list[ScoredSentence], number: int) -> float:
    """The score of the `number`-th best; below all others if there are fewer."""
    return sorted(score for _, score in found)[-number] if len(found) >= number else -math.inf


def longest_output(sentence: list[int]) -> int:
    return int(1.5 * len(sentence) + 20)


def length_penalty(length: int, exponent: float) -> float:
    return float(((5 + length) / 6) ** exponent)


class Runner:
    """Text to text."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.manifest = json.loads((folder / "echelon.json").read_text(encoding="utf-8"))
        self._replaced = {int(code, 16): text for code, text in self.manifest["normalisation"].items()}
        self._tokeniser = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokeniser.model"))
        pieces = [self._tokeniser.id_to_piece(index) for index in range(self._tokeniser.get_piece_size())]
        is_onnx = self.manifest["format"] == "onnx"
        self._model = OnnxModel(folder, threads) if is_onnx else CTranslate2Model(folder, threads, pieces)

    def translate(self, lines: list[str], beam: int, penalty: float, wanted: int = 1) -> list[Alternatives]:
        """For each line its translations with their scores, best first; an empty line stays empty."""
        parts = [(number, tokens) for number, line in enumerate(lines) for tokens in self._parts(line)]
        order = sorted(range(len(parts)), key=lambda index: -len(parts[index][1]))
        found: list[Alternatives] = [[] for _ in parts]
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            results = self._model.search([parts[index][1] for index in batch], beam, penalty, wanted)
            for index, hypotheses in zip(batch, results):
                found[index] = [
                    (self._tokeniser.decode(tokens), float(score)) for tokens, score in hypotheses
                ]
        joined: list[Alternatives] = [[("", 0.0)] for _ in lines]
        for number in {number for number, _ in parts}:
            own = [found[index] for index, part in enumerate(parts) if part[0] == number]
            joined[number] = [
                (" ".join(text for text, _ in rank if text), sum(score for _, score in rank))
                for rank in zip(*own)
            ]
        return joined

    def _parts(self, line: str) -> list[list[int]]:
        """The line's tokens; those of its sentences or groups of words if the model has seen nothing as long."""
        rules = self.manifest["text"]
        clean = " ".join(unicodedata.normalize(rules["unicode"], line.translate(self._replaced)).split())
        longest = rules["longest"] - 1
        texts, parts = [clean] if clean else [], []
        if clean and len(self._tokeniser.encode(clean)) > longest:
            texts = SENTENCE_END.sub(lambda end: end[0].rstrip() + "\n", clean).split("\n")
        for text in texts:
            tokens = self._tokeniser.encode(text)
            parts += [[*tokens[i : i + longest], EOS] for i in range(0, len(tokens), longest)]
        return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs="*", help="what to translate; default: stdin, line by line")
    parser.add_argument("--beam", type=int, help="hypotheses followed at a time")
    parser.add_argument("--n-best", type=int, default=1, help="translations per line, with scores")
    parser.add_argument(
        "--threads", type=int, default=0, help="processor threads; 0: as many as there are cores"
    )
    parser.add_argument(
        "--model", type=Path, default=Path(__file__).resolve().parent, help="the model's folder"
    )
    options = parser.parse_args()
    runner = Runner(options.model, options.threads)
    beam = max(options.beam or runner.manifest["decoding"]["beam"], options.n_best)
    penalty = runner.manifest["decoding"]["length_penalty"]
    sys.stdin.reconfigure(encoding="utf-8", errors="replace", newline="\n")  # type: ignore[union-attr]
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    lines = iter([" ".join(options.text)] if options.text else sys.stdin)
    while batch := list(islice(lines, LINES_AT_A_TIME)):
        for found in runner.translate(batch, beam, penalty, options.n_best):
            for text, score in found[: options.n_best]:
                sys.stdout.write(f"{score:.4f}\t{text}\n" if options.n_best > 1 else f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
