"""How well classes are known: read from scores, drawn as a matrix, answered in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

from echelon.explain.classes import draw_confusion, read_class_scores
from echelon.explain.drawing import Area, to_svg
from echelon.runfolder import RunFolder
from echelon.tasks.accuracy import combine_guesses


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
    assert sheet.description == "3 of 4 pictures are on the diagonal, which is right."
    assert "cat taken for dog: 1" in to_svg(sheet)


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
