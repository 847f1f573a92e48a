"""Translating with CTranslate2. Needs the extra `export`; does not need torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import floor
from pathlib import Path
from typing import Any

from echelon.errors import PackageError
from echelon.extras import require_extra
from echelon.inference.decoding import DecodedSentence, Decoding, SourceSentence

_NEVER = ("<pad>", "<s>")


class CTranslate2Engine:
    """Implements `Engine`. Several threads may call it at once."""

    name = "ctranslate2"

    def __init__(self, folder: Path, threads: int, at_once: int = 1) -> None:
        """`at_once` batches are computed side by side, with `threads` threads in all."""
        self._ctranslate2 = require_extra("ctranslate2", "export")
        self._folder, self._threads = folder, threads
        self._translator = self._load(at_once)
        self._seeding = threading.Lock()
        self._pieces = read_pieces(folder)
        self._ids = {piece: index for index, piece in enumerate(self._pieces)}

    def _load(self, at_once: int) -> Any:
        try:
            return self._ctranslate2.Translator(
                str(self._folder),
                device="cpu",
                inter_threads=at_once,
                intra_threads=max(1, self._threads // at_once),
            )
        except (RuntimeError, ValueError) as error:
            raise PackageError(f"{self._folder}: CTranslate2 cannot load it: {error}") from error

    def search(self, jobs: Sequence[SourceSentence], decoding: Decoding) -> list[list[DecodedSentence]]:
        if decoding.alignment and len(jobs) > 1:
            # CTranslate2 gives all sentences of a batch the first row of one of them when there is a beam.
            return [found for job in jobs for found in self.search([job], decoding)]
        with self._seeded(decoding.seed) as translator:
            results = translator.translate_batch(
                [self._as_pieces(job.tokens) for job in jobs],
                [self._as_pieces(job.prefix) for job in jobs],
                **translate_options(decoding, max(longest_target(decoding, job) for job in jobs)),
            )
        return [self._as_found(job, result, decoding) for job, result in zip(jobs, results, strict=True)]

    @contextmanager
    def _seeded(self, seed: int | None) -> Iterator[Any]:
        """The translator; with a seed, one that draws the same as any other with that seed.

        CTranslate2 looks at the seed when a thread draws for the first time, and never again: only new threads, those
        of a model loaded anew, heed it.
        """
        if seed is None:
            yield self._translator
            return
        with self._seeding:
            self._ctranslate2.set_random_seed(seed)
            yield self._load(at_once=1)

    def score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """The log-probability of each token of given translations, which end with the end of sentence."""
        sources = [self._as_pieces(source) for source, _ in pairs]
        targets = [self._as_pieces(target[:-1]) for _, target in pairs]  # CTranslate2 adds the end itself
        return [list(result.log_probs) for result in self._translator.score_batch(sources, targets)]

    def _as_pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._pieces[token] for token in tokens]

    def _as_found(self, job: SourceSentence, result: Any, decoding: Decoding) -> list[DecodedSentence]:
        """CTranslate2 gives plain log-probabilities; the length penalty that chooses among them is ours."""
        found, longest = [], longest_target(decoding, job)
        for rank, whole in enumerate(result.hypotheses):
            pieces = whole[:longest]  # CTranslate2's own limit is that of the batch
            score = result.scores[rank] / ((5 + len(pieces) + 1) / 6) ** decoding.length_penalty
            attention = result.attention[rank][: len(pieces)] if decoding.alignment else None
            found.append(DecodedSentence([self._ids[piece] for piece in pieces], score, attention))
        return sorted(found, key=lambda one: -one.score)[: decoding.n_best]


def translate_options(decoding: Decoding, longest: int) -> dict[str, Any]:
    """CTranslate2's options. All hypotheses of the beam are requested, to be ranked by our length penalty."""
    options: dict[str, Any] = {
        "beam_size": decoding.beam,
        "num_hypotheses": decoding.beam,
        "length_penalty": 0,
        "max_decoding_length": longest,
        "min_decoding_length": decoding.min_length,
        "max_input_length": 0,
        "disable_unk": True,
        "suppress_sequences": [[piece] for piece in _NEVER],
        "return_scores": True,
        "return_attention": decoding.alignment,
    }
    if decoding.temperature is not None:
        options |= {
            "beam_size": 1,
            "num_hypotheses": decoding.n_best,
            "sampling_temperature": decoding.temperature,
            "sampling_topk": decoding.top_k,
        }
    return options


def longest_target(decoding: Decoding, job: SourceSentence) -> int:
    """The length at which a translation is cut off, as in our own beam search."""
    by_source = floor(1.5 * len(job.tokens) + 20) + len(job.prefix)
    return decoding.max_length or max(by_source, decoding.min_length)


def read_pieces(folder: Path) -> list[str]:
    """The vocabulary, in the order of its ids."""
    from echelon.runfolder import read_json

    try:
        return [str(piece) for piece in read_json(folder / "shared_vocabulary.json")]
    except (OSError, ValueError, TypeError) as error:
        raise PackageError(f"{folder}: its vocabulary cannot be read: {error}") from error
