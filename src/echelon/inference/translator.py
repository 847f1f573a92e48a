"""Text in, text out, in order, whatever the engine and the batches are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, overload

import numpy as np

from echelon.data.batches import length_sorted_batches
from echelon.data.cleaning import normalise
from echelon.data.long_lines import join_parts, parts_of
from echelon.data.tokeniser import EOS, UNK, Tokeniser
from echelon.errors import UserError
from echelon.inference.decoding import (
    LARGEST_BEAM,
    Alignment,
    Alternative,
    DecodedSentence,
    Decoding,
    Engine,
    SourceSentence,
    Translation,
)
from echelon.inference.exported_model import TextRules
from echelon.inference.model_folder import load_text_model

LINES_AT_A_TIME = 512
_BATCH_TOKENS = 2048
_EMPTY = Translation((Alternative("", 0.0),))


@dataclass(frozen=True)
class LinePart:
    """A line, or one sentence of a long one."""

    line: int
    job: SourceSentence


class Translator:
    """A trained model that translates raw text.

    >>> translator = Translator.load("runs/demo")
    >>> translator.translate("The dog sleeps.").text
    >>> [translation.text for translation in translator.translate(["The dog sleeps.", "It rains."])]
    """

    task = "translation"

    def __init__(self, engine: Engine, tokeniser: Tokeniser, rules: TextRules, decoding: Decoding) -> None:
        self.engine = engine
        self.rules = rules
        self.decoding = decoding
        """The default options of `translate`: the recipe's beam and length penalty."""
        self._tokeniser = tokeniser

    def __repr__(self) -> str:
        return f"Translator(engine={self.engine.name!r}, beam={self.decoding.beam})"

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        checkpoint: str | None = None,
        threads: int | None = None,
    ) -> Translator:
        """Load a run folder or an exported folder; UserError if it is neither.

        `checkpoint` is a run's best, last, average or a checkpoint folder. A run is computed by PyTorch,
        an exported folder by what it was exported for, with `threads` threads.
        """
        return cls(*load_text_model(Path(path), checkpoint, threads))

    @overload
    def translate(  # type: ignore[overload-overlap]  # a str is an Iterable[str] too: the first that fits decides
        self,
        lines: str,
        decoding: Decoding | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        on_batch: Callable[[float], None] = ...,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        lines: Iterable[str],
        decoding: Decoding | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        on_batch: Callable[[float], None] = ...,
    ) -> list[Translation]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        decoding: Decoding | None = None,
        *,
        prefixes: Sequence[str] | None = None,
        on_batch: Callable[[float], None] = lambda _: None,
    ) -> Translation | list[Translation]:
        """Translate one text, or each line in order; an empty line stays empty.

        `prefixes` are what the translations begin with, one per line, in whole words. `on_batch` is called before
        every batch with the share of the tokens that are translated.
        """
        if isinstance(lines, str):
            (translation,) = self.translate([lines], decoding, prefixes=prefixes, on_batch=on_batch)
            return translation
        how = decoding or self.decoding
        parts, num_lines = self._split(list(lines), prefixes, how)
        found: list[list[DecodedSentence]] = [[] for _ in parts]
        lengths = np.array([len(part.job.tokens) for part in parts], np.int64)
        done = 0
        for indices in length_sorted_batches(lengths, _BATCH_TOKENS) if parts else []:
            on_batch(done / int(lengths.sum()))
            done += int(lengths[indices].sum())
            batch = [parts[index].job for index in indices.tolist()]
            for index, best in zip(indices.tolist(), self.engine.search(batch, how), strict=True):
                found[index] = best
        return self._join(parts, found, num_lines)

    def translate_stream(
        self, lines: Iterable[str], decoding: Decoding | None = None, *, at_a_time: int = LINES_AT_A_TIME
    ) -> Iterator[Translation]:
        """Translations of a stream of lines, `at_a_time` lines in a batch."""
        stream = iter(lines)
        while batch := list(islice(stream, at_a_time)):
            yield from self.translate(batch, decoding)

    def encode_prefix(self, prefix: str, how: Decoding) -> list[int]:
        """The tokens that a translation begins with; UserError if it cannot begin with them."""
        if not prefix:
            return []
        text = self._clean(prefix)
        tokeniser = self._tokeniser.for_target
        (ids,) = tokeniser.encode([text])
        if UNK in ids:
            unknown = [
                character for character in dict.fromkeys(text) if UNK in tokeniser.encode([character])[0]
            ]
            raise UserError(
                f"no translation begins with {prefix!r}: the model's vocabulary lacks {''.join(unknown)!r}"
            )
        if how.max_length is not None and len(ids) >= how.max_length:
            raise UserError(
                f"the prefix has {len(ids)} tokens, and max_length = {how.max_length} leaves no room behind it"
            )
        return ids

    def _split(
        self, lines: list[str], prefixes: Sequence[str] | None, how: Decoding
    ) -> tuple[list[LinePart], int]:
        """The lines as jobs, in order; a line's prefix goes with its first part."""
        texts: list[tuple[int, str, str]] = []
        for number, line in enumerate(lines):
            prefix = prefixes[number] if prefixes else ""
            clean, longest = self._clean(line), self.rules.longest
            for part in parts_of(clean, longest, self._tokeniser.count, at_sentences=how.sentences):
                texts.append((number, part, prefix))
                prefix = ""
        tokens = self._tokeniser.encode([text for _, text, _ in texts])
        begun = [self.encode_prefix(prefix, how) for _, _, prefix in texts]
        parts = [
            LinePart(number, SourceSentence([*ids, EOS], prefix))
            for (number, _, _), ids, prefix in zip(texts, tokens, begun, strict=True)
        ]
        return parts, len(lines)

    def _clean(self, line: str) -> str:
        whole = line.encode("utf-8", "replace").decode()  # JSON may bring halves of characters
        return normalise(whole, self.rules.unicode)

    def _join(
        self, parts: list[LinePart], found: list[list[DecodedSentence]], num_lines: int
    ) -> list[Translation]:
        every = [[self._alternative(one) for one in best] for best in found]
        results = [_EMPTY] * num_lines
        by_line: dict[int, list[int]] = {}
        for index, part in enumerate(parts):
            by_line.setdefault(part.line, []).append(index)
        for line, indices in by_line.items():
            alternatives = join_alternatives([every[index] for index in indices])
            alignment = self._alignment([(parts[index].job, found[index][0]) for index in indices])
            results[line] = Translation(alternatives, alignment)
        return results

    def _alternative(self, found: DecodedSentence) -> Alternative:
        (text,) = self._tokeniser.decode([found.tokens])
        return Alternative(text, found.score)

    def _alignment(self, translated: list[tuple[SourceSentence, DecodedSentence]]) -> Alignment | None:
        """The attention of all parts, one after the other: no part looks at another."""
        width = sum(len(job.tokens) for job, _ in translated)
        whole = Alignment([], [], [])
        for job, found in translated:
            if found.attention is None:
                return None
            before = len(whole.source)
            whole.source.extend(self._tokeniser.pieces(job.tokens))
            whole.target.extend(self._tokeniser.pieces(found.tokens))
            after = width - len(whole.source)
            whole.weights.extend([*[0.0] * before, *row, *[0.0] * after] for row in found.attention)
        return whole


def join_alternatives(parts: list[list[Alternative]]) -> tuple[Alternative, ...]:
    """A line's alternatives, joined from those of its parts: the best of each, the second of each, and so on."""
    if len(parts) == 1:
        return tuple(parts[0])
    count = max(len(part) for part in parts)
    ranks = [[part[min(rank, len(part) - 1)] for part in parts] for rank in range(count)]
    return tuple(
        Alternative(join_parts([one.text for one in rank]), sum(one.score for one in rank)) for rank in ranks
    )


def with_defaults(decoding: Decoding, **changes: object) -> Decoding:
    """The decoding with the changes that are not None; UserError if they do not fit together.

    The beam is at least as wide as the number of translations asked for: how many are shown must not change which is
    found best.
    """
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    if given.get("temperature", decoding.temperature) is None:
        wanted = min(given.get("n_best", decoding.n_best), LARGEST_BEAM)
        given["beam"] = max(given.get("beam", decoding.beam), wanted)
    return replace(decoding, **given)
