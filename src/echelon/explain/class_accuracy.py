"""The accuracy of each class, from a run's scores, and the confusion matrix as a chart."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from echelon.explain.sheet import Area, Mark, Sheet, Words
from echelon.runfolder import RunFolder, read_json

_MOST_DRAWN = 30
"""Classes up to which a confusion matrix can be read as a picture."""
_WIDTH, _LEFT, _TOP, _BOTTOM = 640, 110, 46, 86
_LONGEST_NAME = 14
_LETTER = 6.2
"""How wide a letter of a class's name is."""
_SLANT = -45.0
Count = Annotated[int, Field(ge=0)]


class ClassScore(BaseModel):
    """One class."""

    name: str
    images: Count
    top1: float | None


class ConfusedPair(BaseModel):
    """How often one class was taken for another."""

    name: str = Field(alias="class")
    taken_for: str
    images: Count


class ClassScores(BaseModel):
    """What scores/test.json of image classification holds beside the numbers."""

    classes: list[ClassScore]
    confused: list[ConfusedPair]
    confusion: list[list[Count]] | None = None
    split: str = "test"
    checkpoint: str = "?"

    @property
    def source(self) -> str:
        """The set and the weights that were scored."""
        name = "validation" if self.split == "valid" else self.split
        return f"{name} set, checkpoint {self.checkpoint}"


def read_class_scores(run: RunFolder) -> ClassScores | None:
    """The newest scores by class, of the test set or else the validation set; None if there are none."""
    for split in ("test", "valid"):
        try:
            found: Any = read_json(run.score_file(split))
            return ClassScores.model_validate(found)
        except (OSError, ValueError, ValidationError):
            continue
    return None


def draw_confusion(scores: ClassScores | None) -> Sheet | None:
    """Rows are what pictures show, columns what they were taken for; the fuller a cell, the more of its row."""
    if scores is None or scores.confusion is None or not 2 <= len(scores.classes) <= _MOST_DRAWN:
        return None
    count = len(scores.classes)
    if len(scores.confusion) != count or any(len(row) != count for row in scores.confusion):
        return None
    cell = (_WIDTH - _LEFT - 20) / count
    height = min(cell, 30.0)
    names = [entry.name[:_LONGEST_NAME] for entry in scores.classes]
    marks: list[Mark] = [Words(16, 20, "Confusion matrix", "ink", size=14, is_bold=True)]
    legend = f"{scores.source}; rows: what images show; columns: what they were taken for"
    marks.append(Words(16, 38, legend, size=11))
    for row, counts in enumerate(scores.confusion):
        marks.append(Words(_LEFT - 8, _TOP + (row + 0.65) * height, names[row], anchor="end", size=11))
        for column, images in enumerate(counts):
            if images:
                x, y = _LEFT + column * cell, _TOP + row * height
                corners = ((x, y), (x + cell - 1, y), (x + cell - 1, y + height - 1), (x, y + height - 1))
                title = f"{names[row]} taken for {names[column]}: {images}"
                opacity = 0.12 + 0.5 * images / sum(counts)
                marks += _cell(corners, images, opacity, is_right=row == column, title=title)
    bottom = _TOP + count * height
    marks += _name_columns(names, cell, bottom + 16)
    right = sum(scores.confusion[number][number] for number in range(count))
    description = f"{right} of {sum(map(sum, scores.confusion))} images are on the diagonal, which is right."
    return Sheet(_WIDTH, round(bottom + _BOTTOM), tuple(marks), "Confusion matrix", description)


def _name_columns(names: list[str], cell: float, y: float) -> list[Mark]:
    """The names in one row below the columns, slanted if one is wider than its column."""
    if _LETTER * max(map(len, names)) < cell:
        return [
            Words(_LEFT + (column + 0.5) * cell, y, name, anchor="middle", size=11)
            for column, name in enumerate(names)
        ]
    return [
        Words(_LEFT + (column + 0.5) * cell + 4, y, name, anchor="end", size=11, angle=_SLANT)
        for column, name in enumerate(names)
    ]


def _cell(
    points: tuple[tuple[float, float], ...], images: int, opacity: float, *, is_right: bool, title: str
) -> list[Mark]:
    (left, top), (right, bottom) = points[0], points[2]
    return [
        Area(points, 0 if is_right else 1, opacity, title),
        Words((left + right) / 2, top + 0.65 * (bottom - top), str(images), "ink", "middle", 11),
    ]
