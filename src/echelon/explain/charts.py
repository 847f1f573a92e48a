"""Charts as marks on a sheet: lines over steps, stacked phases over time, shares of a whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from echelon.explain.sheet import SERIES_COLOURS, Area, Mark, Path, Sheet, Words
from echelon.explain.units import show_share

_WIDTH, _HEIGHT = 640, 290
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 18, 62, 42
_MOST_POINTS = 400
_KEY_LEFT, _KEY_ROW = 16.0, 15
_LETTER = 6.2
"""Width of a letter of the key, on average."""
_LONGEST_NAME = 90
"""Letters of a name that a row of the key has room for; of a longer one, its end tells it from others."""


@dataclass(frozen=True)
class Series:
    """A named line."""

    name: str
    points: Sequence[tuple[float, float]]
    is_dashed: bool = False
    colour: int | None = None
    """A series' number; by default its position in the chart."""
    longest_gap: float = math.inf
    """Points further apart along the axis are not joined: nothing is known of the time between them."""


@dataclass(frozen=True)
class _ChartFrame:
    """Maps values to positions on the sheet."""

    x: tuple[float, float]
    y: tuple[float, float]
    lower: int = 0
    """By how much the further rows of a key push everything down."""

    def place(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
        return _LEFT + across * (right - _LEFT), bottom - up * (bottom - _TOP) + self.lower


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    x_label: str = "step",
    show_x: Callable[[float], str] | None = None,
    starts_at_zero: bool = False,
) -> Sheet:
    """Lines over a common axis, without points that are not finite."""
    drawn = [_finite(line) for line in series]
    drawn = [line for line in drawn if line.points]
    if not drawn:
        return _empty(title)
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    low = 0.0 if starts_at_zero else min(ys)
    key = _key([(line.name, line.colour) for line in drawn])
    frame = _ChartFrame(_widened(min(xs), max(xs)), _nice_range(low, max(ys)), _lower(key))
    marks = _axes(frame, x_label, show_x or show_number)
    for number, line in enumerate(drawn):
        colour = _colour(number) if line.colour is None else line.colour
        for piece in _pieces(line):
            places = tuple(frame.place(x, y) for x, y in piece)
            if len(places) == 1:
                x, y = places[0]
                places = ((x - 4, y), (x + 4, y))
            marks.append(Path(places, colour, is_dashed=line.is_dashed))
    marks += _heading(title, key)
    words = "; ".join(
        f"{line.name} goes from {show_number(line.points[0][1])} to {show_number(line.points[-1][1])}"
        for line in drawn
    )
    return Sheet(_WIDTH, _HEIGHT + frame.lower, tuple(marks), title, f"{words}.")


def stack_chart(title: str, x: Sequence[float], layers: Sequence[tuple[str, Sequence[float]]]) -> Sheet:
    """A stacked chart of a total's parts; the first layer is at the bottom."""
    if len(x) < 2 or not layers:
        return _empty(title)
    tops = [0.0] * len(x)
    stacked: list[tuple[str, list[float], list[float]]] = []
    for name, values in layers:
        upper = [below + value for below, value in zip(tops, values, strict=True)]
        stacked.append((name, tops, upper))
        tops = upper
    key = _key([(name, None) for name, _, _ in stacked])
    frame = _ChartFrame(_widened(x[0], x[-1]), _nice_range(0.0, max(tops) or 1.0), _lower(key))
    marks = _axes(frame, "step", show_number)
    for number, (name, lower, upper) in enumerate(stacked):
        edge = [frame.place(at, value) for at, value in zip(x, upper, strict=True)]
        back = [frame.place(at, value) for at, value in zip(x, lower, strict=True)]
        marks.append(Area((*edge, *reversed(back)), _colour(number), 0.85, name))
    marks += _heading(title, key)
    means = ", ".join(f"{name} {show_number(sum(values) / len(values))}" for name, values in layers)
    return Sheet(_WIDTH, _HEIGHT + frame.lower, tuple(marks), title, f"On average: {means}.")


def share_chart(title: str, parts: Sequence[tuple[str, float]]) -> Sheet:
    """Shares of a whole as one bar each, the largest first."""
    total = sum(value for _, value in parts) or 1.0
    ordered = sorted(((name, value) for name, value in parts if value > 0), key=lambda part: -part[1])
    if not ordered:
        return _empty(title)
    height = 52 + 28 * len(ordered) + 8
    marks: list[Mark] = [Words(16, 26, title, "ink", size=15, is_bold=True)]
    for number, (name, value) in enumerate(ordered):
        y = 52 + 28 * number
        width = 380 * value / total
        corners = (
            (150.0, y),
            (150 + max(width, 1.5), y),
            (150 + max(width, 1.5), y + 18.0),
            (150.0, y + 18.0),
        )
        marks.append(Words(140, y + 14, name, "ink", "end", 13))
        marks.append(Area(corners, 0, 0.85, f"{name}: {show_share(value / total)}"))
        marks.append(Words(158 + width, y + 14, show_share(value / total), "faint", size=12))
    words = ", ".join(f"{name} {show_share(value / total)}" for name, value in ordered)
    return Sheet(_WIDTH, height, tuple(marks), title, f"{words}.")


def _empty(title: str) -> Sheet:
    marks = (Words(16, 26, title, "ink", size=15, is_bold=True), Words(16, 60, "nothing yet", size=13))
    return Sheet(_WIDTH, 90, marks, title, "Nothing yet.")


@dataclass(frozen=True)
class _KeyEntry:
    """A series' name in the legend, and its position."""

    name: str
    colour: int
    x: float
    row: int


def _key(series: Sequence[tuple[str, int | None]]) -> list[_KeyEntry]:
    """Names side by side, in as many rows as they need; none if there is only one series."""
    if len(series) < 2:
        return []
    named = [
        (name, _colour(number) if colour is None else colour) for number, (name, colour) in enumerate(series)
    ]
    if len(named) > len(SERIES_COLOURS):
        rest = named[len(SERIES_COLOURS) - 1 :]
        named = [*named[: -len(rest)], (f"and {len(rest)} more", rest[0][1])]
    entries: list[_KeyEntry] = []
    x, row = _KEY_LEFT, 0
    for name, colour in named:
        shown = name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
        width = 17 + _LETTER * len(shown) + 9
        if x > _KEY_LEFT and x + width > _WIDTH:
            x, row = _KEY_LEFT, row + 1
        entries.append(_KeyEntry(shown, colour, x, row))
        x += width
    return entries


def _colour(number: int) -> int:
    """Which colour a series has; series beyond the last colour share it."""
    return min(number, len(SERIES_COLOURS) - 1)


def _lower(key: Sequence[_KeyEntry]) -> int:
    return _KEY_ROW * key[-1].row if key else 0


def _heading(title: str, key: Sequence[_KeyEntry]) -> list[Mark]:
    marks: list[Mark] = [Words(16, 22, title, "ink", size=15, is_bold=True)]
    for entry in key:
        x, top = entry.x, 33 + _KEY_ROW * entry.row
        marks.append(Area(((x, top), (x + 12, top), (x + 12, top + 9), (x, top + 9)), entry.colour))
        marks.append(Words(x + 16, top + 9, entry.name, size=11))
    return marks


def _axes(frame: _ChartFrame, x_label: str, show_x: Callable[[float], str]) -> list[Mark]:
    marks: list[Mark] = []
    for value in ticks(*frame.y):
        (x0, y), (x1, _) = frame.place(frame.x[0], value), frame.place(frame.x[1], value)
        marks.append(Path(((x0, y), (x1, y)), None, 1.0))
        marks.append(Words(x0 - 8, y + 4, show_number(value), anchor="end", size=11))
    for value in ticks(*frame.x, most=7):
        x, bottom = frame.place(value, frame.y[0])
        marks.append(Words(x, bottom + 16, show_x(value), anchor="middle", size=11))
    marks.append(Words(_WIDTH - _RIGHT, _HEIGHT + frame.lower - 8, x_label, anchor="end", size=11))
    return marks


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two values."""
    rough = (high - low) / most
    size = 10 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(first + number) * step for number in range(max(count, 0))]


def show_number(value: float) -> str:
    """Short: 12k, 3.5, 0.002, 4e-05."""
    if value and not 1e-4 <= abs(value) < 1e15:
        return f"{value:.3g}"
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):.4g}{suffix}"
    return f"{value:.4g}"


def _nice_range(low: float, high: float) -> tuple[float, float]:
    low, high = _widened(low, high)
    marks = ticks(low, high)
    step = marks[1] - marks[0] if len(marks) > 1 else high - low
    return math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range that is not empty, nor too narrow to have round numbers in it."""
    if high - low > 1e-12 * max(abs(low), abs(high), 1e-200):
        return low, high
    around = abs(low) / 2 or 1.0
    return low - around if low else 0.0, high + around


def _pieces(series: Series) -> list[list[tuple[float, float]]]:
    """A series' points, thinned, split at gaps."""
    pieces: list[list[tuple[float, float]]] = []
    for x, y in series.points:
        if not pieces or x - pieces[-1][-1][0] > series.longest_gap:
            pieces.append([])
        pieces[-1].append((x, y))
    size = math.ceil(len(series.points) / _MOST_POINTS)
    return [_thinned(piece, size) for piece in pieces]


def _thinned(points: Sequence[tuple[float, float]], size: int) -> list[tuple[float, float]]:
    """Means of `size` neighbours: no more points than can be seen."""
    if size <= 1:
        return list(points)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _finite(series: Series) -> Series:
    points = [(x, y) for x, y in series.points if y is not None and math.isfinite(x) and math.isfinite(y)]
    return replace(series, points=points)
