from __future__ import annotations

from typing import Any

import pytest

from echelon.errors import UserError
from echelon.inference.decoding import Alternative, Decoding, Translation


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beam": 0}, "beam = 0 must be from 1 to 64"),
        ({"n_best": 5}, "n_best = 5 is more than beam = 4"),
        ({"min_length": 9, "max_length": 3}, "max_length = 3 must be at least 1 and min_length = 9"),
        ({"temperature": 0.0}, "temperature = 0.0 must be over 0"),
        ({"top_k": 3}, "give a temperature too"),
        ({"temperature": 1.0, "seed": -5}, "seed = -5 must be from 0 to 2147483647"),
        ({"temperature": 1.0, "top_k": 1, "n_best": 3}, "top_k = 1 always draws the same"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        (
            {"beam": 99, "min_length": -1},
            "beam = 99 must be from 1 to 64; min_length = -1 must not be negative",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        Decoding(**wrong)
    assert message in str(error.value)


def test_more_samples_than_the_beam_is_wide_may_be_drawn() -> None:
    assert Decoding(beam=1, n_best=8, temperature=1.0).n_best == 8


def test_a_translation_reads_as_its_best_alternative() -> None:
    translation = Translation((Alternative("gut", -0.5), Alternative("schlecht", -2.0)))
    assert (str(translation), translation.text, translation.score) == ("gut", "gut", -0.5)
