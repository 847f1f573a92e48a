"""Charts: round numbers on the axes, whole drawings, and words for those who do not see them."""

from __future__ import annotations

import io
import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from echelon.explain.charts import Series, line_chart, share_chart, show_number, stack_chart, ticks
from echelon.explain.sheet import Path, Sheet, Words, standalone_svg, to_png, to_svg

SHEETS = [
    line_chart(
        "Loss & more", [Series("training", [(1, 3.0), (2, 2.0), (3, math.nan)]), Series("valid", [(2, 2.5)])]
    ),
    stack_chart("Step", [1.0, 2.0, 3.0], [("forward", [1.0, 1.0, 1.0]), ("backward", [2.0, 3.0, 2.0])]),
    share_chart("Shares", [("a", 3.0), ("b", 1.0), ("c", 0.0)]),
    line_chart("Nothing", []),
    stack_chart("Nothing", [], []),
]


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_round_and_within_the_range(low: float, span: float) -> None:
    high = low + span
    if high <= low:
        return
    marks = ticks(low, high)
    assert len(marks) <= 11
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert all(low - slack <= mark <= high + slack for mark in marks)


def test_ticks_are_what_a_person_would_choose() -> None:
    assert ticks(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(0, 47) == pytest.approx([0, 10, 20, 30, 40])
    assert [show_number(value) for value in (0, 0.002, 3.5, 1234, 25_000, 4e6, 2e-5)] == [
        "0",
        "0.002",
        "3.5",
        "1234",
        "25k",
        "4M",
        "2e-05",
    ]


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.title)
def test_a_drawing_is_whole_in_both_forms_and_says_what_it_shows(sheet: Sheet) -> None:
    root = ElementTree.fromstring(standalone_svg(sheet))
    assert root.get("role") == "img"
    assert sheet.title in (root.get("aria-label") or "")
    assert len(sheet.description) > 5
    image = Image.open(io.BytesIO(to_png(sheet)))
    assert image.size == (2 * sheet.width, 2 * sheet.height)
    assert to_svg(sheet).count("nan") == 0


def test_values_lie_where_the_axis_says() -> None:
    sheet = line_chart("x", [Series("a", [(0, 0.0), (10, 5.0), (20, 10.0)])])
    (line,) = [mark for mark in sheet.marks if isinstance(mark, Path) and mark.series is not None]
    (x0, y0), (x1, y1), (x2, y2) = line.points
    assert x1 - x0 == pytest.approx(x2 - x1)
    assert y0 - y1 == pytest.approx(y1 - y2)
    assert y0 > y2


def test_a_long_curve_is_thinned_to_what_can_be_seen() -> None:
    sheet = line_chart("x", [Series("a", [(float(n), 1.0) for n in range(100_000)])])
    (line,) = [mark for mark in sheet.marks if isinstance(mark, Path) and mark.series is not None]
    assert len(line.points) <= 400


@pytest.mark.parametrize("count", [2, 8, 9, 100])
def test_the_key_of_many_hosts_with_long_names_stays_on_the_sheet(count: int) -> None:
    names = [f"ip-10-0-12-{number:03d}.eu-central-1.compute.internal" for number in range(count)]
    sheet = line_chart("Use", [Series(name, [(0, 1.0), (9, 2.0)]) for name in names])
    shown = [mark for mark in sheet.marks if isinstance(mark, Words) and mark.text in names]
    assert [mark.text for mark in shown] == (names if count <= 8 else names[:7])
    assert any(isinstance(mark, Words) and mark.text == f"and {count - 7} more" for mark in sheet.marks) == (
        count > 8
    )
    assert all(mark.x + 6.2 * len(mark.text) <= sheet.width for mark in shown)
    lines = [mark for mark in sheet.marks if isinstance(mark, Path) and mark.series is not None]
    assert len(lines) == count, "every series is drawn, also those without a name in the key"
    assert len({line.series for line in lines[:7]} | {lines[-1].series}) == min(count, 8)
    assert min(y for line in lines for _, y in line.points) > max(mark.y for mark in shown)


def test_of_a_name_that_is_too_long_the_end_is_shown() -> None:
    names = ["/very/long/folder" * 10 + end for end in ("/one", "/two")]
    sheet = line_chart("Loss", [Series(name, [(0, 1.0), (9, 2.0)]) for name in names])
    shown = [mark for mark in sheet.marks if isinstance(mark, Words) and mark.text.endswith(("/one", "/two"))]
    assert len(shown) == 2
    assert all(mark.x + 6.2 * len(mark.text) <= sheet.width for mark in shown)


@pytest.mark.parametrize("values", [(0.0, 5e-324), (1e9, 1e9 + 1e-6), (3.0, 3.0)])
def test_values_that_hardly_differ_can_be_drawn(values: tuple[float, float]) -> None:
    sheet = line_chart("Loss", [Series("training", list(enumerate(values)))])
    assert standalone_svg(sheet).startswith("<svg")
