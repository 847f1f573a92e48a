"""How well classes are known: read from scores, drawn as a matrix, answered in a sentence."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from echelon.explain.class_accuracy import draw_confusion, read_class_scores
from echelon.explain.report import build_report
from echelon.explain.sheet import Area, Sheet, Words, to_png, to_svg
from echelon.runfolder import RunFolder
from echelon.tasks.accuracy import combine_guesses
from tests.explain.made_runs import MadeRun


def scored_run(path: Path, split: str = "test") -> RunFolder:
    run = RunFolder(path)
    run.create()
    metrics, details = combine_guesses([0, 0, 1, 1], [0, 1, 0, 0], [0, 1, 1, 1], ["cat", "dog"])
    run.score_file(split).write_text(json.dumps({**metrics, **details}))
    return run


def test_scores_by_class_are_read_and_drawn(tmp_path: Path) -> None:
    scores = read_class_scores(scored_run(tmp_path))
    assert scores is not None
    sheet = draw_confusion(scores)
    assert sheet is not None
    cells = [mark for mark in sheet.marks if isinstance(mark, Area)]
    assert [cell.title for cell in cells] == [
        "cat taken for cat: 1",
        "cat taken for dog: 1",
        "dog taken for dog: 2",
    ]
    assert cells[2].opacity > cells[0].opacity
    assert sheet.description == "3 of 4 images are on the diagonal, which is right."
    assert "cat taken for dog: 1" in to_svg(sheet)


@pytest.mark.parametrize("names", [["cat", "dog"], [f"automobile {number}" for number in range(10)]])
def test_names_of_columns_are_in_one_row_and_do_not_overlap(tmp_path: Path, names: list[str]) -> None:
    run, count = scored_run(tmp_path), len(names)
    metrics, details = combine_guesses(list(range(count)), list(range(count)), list(range(count)), names)
    run.score_file("test").write_text(json.dumps({**metrics, **details}))
    sheet = draw_confusion(read_class_scores(run))
    assert sheet is not None
    bottom = max(y for mark in sheet.marks if isinstance(mark, Area) for _, y in mark.points)
    labels = [mark for mark in sheet.marks if isinstance(mark, Words) and mark.y > bottom]
    assert [label.text for label in labels] == names
    assert len({label.y for label in labels}) == 1
    cell = labels[1].x - labels[0].x
    assert all(label.angle or 6 * len(label.text) < cell for label in labels)
    assert to_png(sheet).startswith(b"\x89PNG")


def test_a_turned_text_is_turned_in_both_formats() -> None:
    def draw(angle: float) -> Sheet:
        return Sheet(200, 200, (Words(100, 100, "automobile", "ink", "end", angle=angle),), "", "")

    assert 'transform="rotate(-45 100.0 100.0)"' in to_svg(draw(-45))
    assert "transform" not in to_svg(draw(0))
    tops = []
    for angle in (0, -45):
        with Image.open(io.BytesIO(to_png(draw(angle)))) as image:
            _left, top, right, bottom = ImageOps.invert(image.convert("L")).getbbox() or (0, 0, 0, 0)
        assert right < 215
        tops.append((top, bottom))
    assert tops[0][1] < 210 < tops[1][1], "the start is below the end, where the anchor is"


def test_the_validation_set_does_where_there_is_no_test_set(tmp_path: Path) -> None:
    assert read_class_scores(scored_run(tmp_path, "valid")) is not None


def test_damaged_scores_are_no_scores(tmp_path: Path) -> None:
    run = scored_run(tmp_path)
    for text in ("{}", "[]", "no JSON", '{"classes": [{"name": 3}], "confused": []}'):
        run.score_file("test").write_text(text)
        assert read_class_scores(run) is None
    assert draw_confusion(None) is None


def test_a_matrix_that_is_not_square_is_not_drawn(tmp_path: Path) -> None:
    run = scored_run(tmp_path)
    scores = json.loads(run.score_file("test").read_text())
    scores["confusion"] = [[1, 2], [3]]
    run.score_file("test").write_text(json.dumps(scores))
    assert draw_confusion(read_class_scores(run)) is None


def test_all_classes_that_are_recognised_equally_well_are_named(tmp_path: Path) -> None:
    run = MadeRun().write(tmp_path / "run")
    names = ["cat", "dog", "cow"]
    metrics, details = combine_guesses([0, 1, 2, 2], [0, 1, 0, 2], [0, 1, 0, 2], names)
    run.score_file("test").write_text(json.dumps({**metrics, **details}))
    found = next(answer for answer in build_report(run).answers if answer.key == "classes")
    assert "cat and dog are recognised best (100.0%), cow is worst (50.0%)" in found.answer
