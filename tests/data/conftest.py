"""Corpora for the tests of this folder."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from echelon.recipe.schema import Clean, Corpus, Data, TrainingCorpus

MakeData = Callable[..., Data]
Lines = Sequence[str]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, which lies outside the repository."""
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    for folder in (os.environ.get("ECHELON_DATA"), beside, beside.parents[2] / "shared" / "data"):
        if folder and Path(folder, "multi30k").is_dir():
            return Path(folder)
    pytest.skip("real data sets are not here; set ECHELON_DATA to their folder")


def random_lines(count: int, seed: int, words_a_line: int = 8) -> list[str]:
    """Lines of made-up words, hardly two alike."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=rng.randint(1, 9))) for _ in range(3000)]
    return [" ".join(rng.choices(words, k=rng.randint(2, 2 * words_a_line))) for _ in range(count)]


@pytest.fixture
def make_data(tmp_path: Path) -> MakeData:
    """Writes corpora into tmp_path and gives the recipe's section that names them."""

    def write(name: str, source: Lines, target: Lines) -> dict[str, str]:
        for side, lines in (("en", source), ("de", target)):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), newline="\n")
        return {"source": f"{name}.en", "target": f"{name}.de"}

    def make(
        *train: tuple[Lines, Lines],
        valid: tuple[Lines, Lines] = (["a small dog"], ["ein kleiner Hund"]),
        test: tuple[Lines, Lines] | None = None,
        vocabulary: int = 300,
        clean: Clean | None = None,
    ) -> Data:
        return Data(
            train=[TrainingCorpus(**write(f"train{i}", *lines)) for i, lines in enumerate(train)],  # type: ignore[arg-type]
            valid=Corpus(**write("valid", *valid)),  # type: ignore[arg-type]
            test=None if test is None else Corpus(**write("test", *test)),  # type: ignore[arg-type]
            vocabulary=vocabulary,
            clean=clean or Clean(),
        )

    return make
