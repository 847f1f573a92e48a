"""Corpora for the tests of this folder."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from echelon.recipe.schema import Clean, Corpus, Data, TrainingCorpus

Lines = Sequence[str]


class MakeData(Protocol):
    """Writes corpora and gives the recipe's section that names them."""

    def __call__(
        self,
        *train: tuple[Lines, Lines],
        valid: tuple[Lines, Lines] = ...,
        test: tuple[Lines, Lines] | None = None,
        vocabulary: int = 300,
        clean: Clean | None = None,
    ) -> Data: ...


def random_lines(count: int, seed: int, words_a_line: int = 8) -> list[str]:
    """Lines of made-up words, hardly two alike."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=rng.randint(1, 9))) for _ in range(3000)]
    return [" ".join(rng.choices(words, k=rng.randint(2, 2 * words_a_line))) for _ in range(count)]


def write_corpora(folder: Path) -> MakeData:
    """A MakeData that writes into a folder."""

    def write(name: str, lines: tuple[Lines, Lines]) -> tuple[str, str]:
        for side, text in zip(("en", "de"), lines, strict=True):
            (folder / f"{name}.{side}").write_bytes("".join(f"{line}\n" for line in text).encode())
        return f"{name}.en", f"{name}.de"

    def corpus(name: str, lines: tuple[Lines, Lines]) -> Corpus:
        source, target = write(name, lines)
        return Corpus(source=source, target=target)

    def training_corpus(name: str, lines: tuple[Lines, Lines]) -> TrainingCorpus:
        source, target = write(name, lines)
        return TrainingCorpus(source=source, target=target)

    def make(
        *train: tuple[Lines, Lines],
        valid: tuple[Lines, Lines] = (["a small dog"], ["ein kleiner Hund"]),
        test: tuple[Lines, Lines] | None = None,
        vocabulary: int = 300,
        clean: Clean | None = None,
    ) -> Data:
        return Data(
            train=[training_corpus(f"train{index}", lines) for index, lines in enumerate(train)],
            valid=corpus("valid", valid),
            test=None if test is None else corpus("test", test),
            vocabulary=vocabulary,
            clean=clean or Clean(),
        )

    return make
