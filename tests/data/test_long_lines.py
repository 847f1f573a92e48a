from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.data.long_lines import split_line


def count_words(texts: Sequence[str]) -> list[int]:
    return [len(text.split(" ")) for text in texts]


def count_letters(texts: Sequence[str]) -> list[int]:
    return [len(text) + 1 for text in texts]


def test_a_short_line_stays_whole() -> None:
    assert split_line("One. Two. Three.", 3, count_words) == ["One. Two. Three."]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("He left. She stayed! Why?", ["He left.", "She stayed!", "Why?"]),
        ('"Go." Then he went.', ['"Go."', "Then he went."]),
        ("It cost 3.50 dollars. Then five!", ["It cost 3.50 dollars.", "Then five!"]),
        ("Er kam. Über Nacht fiel Schnee.", ["Er kam.", "Über Nacht fiel Schnee."]),
    ],
)
def test_a_long_line_is_split_at_sentences(line: str, parts: list[str]) -> None:
    assert split_line(" ".join([line] * 3), 4, count_words) == parts * 3
    assert split_line(line, 1000, count_words, always=True) == parts


def test_a_long_sentence_is_split_at_clauses_then_at_words() -> None:
    assert split_line("a b c, d e f; g", 4, count_words) == ["a b c,", "d e f; g"]
    assert split_line("a b c d e f g", 3, count_words) == ["a b c", "d e f", "g"]


def test_a_word_without_end_is_cut() -> None:
    parts = split_line("x" * 1000, 11, count_letters)
    assert "".join(parts) == "x" * 1000
    assert max(map(len, parts)) == 10


@given(st.text("ab .,!?Ä\"'", max_size=200), st.integers(2, 12))
def test_nothing_is_lost_and_no_part_is_too_long(text: str, limit: int) -> None:
    line = " ".join(text.split())
    parts = split_line(line, limit, count_letters) if line else []
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(count <= limit for count in count_letters(parts))
