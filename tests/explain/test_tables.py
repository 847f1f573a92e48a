"""Tables that fit the terminal."""

from __future__ import annotations

from echelon.console import wrap
from echelon.explain.tables import render_table

ROWS = [("CLUSTER", "STEP", "COST"), ("4xg4dn.2xlarge", "711 ms", "$178.17"), ("here", "2 s", "")]


def test_a_table_that_fits_is_one() -> None:
    assert (
        render_table(ROWS, 80)
        == render_table(ROWS)
        == ("CLUSTER         STEP    COST\n4xg4dn.2xlarge  711 ms  $178.17\nhere            2 s")
    )


def test_a_table_that_does_not_fit_has_its_cells_below_each_other() -> None:
    assert render_table(ROWS, 30) == ("4xg4dn.2xlarge\n  STEP  711 ms\n  COST  $178.17\nhere\n  STEP  2 s")


def test_lines_are_broken_between_words_and_continued_below_what_they_say() -> None:
    text = "  gradient         15.5 MB in float32: what a worker sends in a step"
    assert wrap(text, 50) == (
        "  gradient         15.5 MB in float32: what a\n                   worker sends in a step"
    )
    assert wrap("one two three four five six seven eight", 25) == "one two three four five\nsix seven eight"
    assert wrap("  - one two three four five six", 22) == "  - one two three four\n    five six"
    assert wrap(text, None) == text
    path = "runs/" + "a" * 60
    assert path in wrap(f"written to {path}", 40), "a path stays in one piece"
