"""Marks on a sheet, rendered as SVG (coloured by the page's theme) or PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

InkRole = Literal["ink", "faint", "grid"]
SERIES_COLOURS = ("#3566d6", "#d1603d", "#2f8f6b", "#8a5cc2", "#b8860b", "#c2456f", "#4a90a4", "#7a7a7a")
"""Told apart by people who see few colours, on white and on black."""
_PNG_COLOURS: dict[InkRole, str] = {"ink": "#1c2330", "faint": "#5b6575", "grid": "#e3e7ee"}


@dataclass(frozen=True)
class Path:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    series: int | None = None
    """Which series' colour; None is the grid."""
    width: float = 2.0
    is_dashed: bool = False


@dataclass(frozen=True)
class Area:
    """A filled shape."""

    points: tuple[tuple[float, float], ...]
    series: int
    opacity: float = 1.0
    title: str = ""


@dataclass(frozen=True)
class Words:
    """A line of text; `x` and `y` are its baseline's start, middle or end."""

    x: float
    y: float
    text: str
    role: InkRole = "faint"
    anchor: Literal["start", "middle", "end"] = "start"
    size: int = 12
    is_bold: bool = False
    angle: float = 0.0
    """Degrees by which it is turned about `x`, `y`; below 0, it rises from left to right."""


Mark = Path | Area | Words


@dataclass(frozen=True)
class Sheet:
    """A drawing, and its description for screen readers."""

    width: int
    height: int
    marks: tuple[Mark, ...]
    title: str
    description: str


def to_svg(sheet: Sheet) -> str:
    """The drawing for a page that defines the classes `s0`... and `ink`, `faint`, `grid`."""
    label = escape(f"{sheet.title}. {sheet.description}", quote=True)
    lines = [f'<svg viewBox="0 0 {sheet.width} {sheet.height}" role="img" aria-label="{label}">']
    lines += [_svg_mark(mark) for mark in sheet.marks]
    return "\n".join([*lines, "</svg>"])


def standalone_svg(sheet: Sheet) -> str:
    """The drawing as a file of its own, on white."""
    series = "".join(
        f".line.s{number}{{stroke:{colour}}}.area.s{number}{{fill:{colour}}}"
        for number, colour in enumerate(SERIES_COLOURS)
    )
    words = "".join(f"text.{role}{{fill:{colour}}}" for role, colour in _PNG_COLOURS.items())
    sheet_style = "svg{background:#fff;font-family:sans-serif}.line{fill:none}.line.grid{stroke:#e3e7ee}"
    style = sheet_style + series + words
    size = f'<svg xmlns="http://www.w3.org/2000/svg" width="{sheet.width}" height="{sheet.height}"'
    return to_svg(sheet).replace("<svg", size, 1).replace(">", f"><style>{style}</style>", 1) + "\n"


def _svg_mark(mark: Mark) -> str:
    match mark:
        case Path():
            colour = "grid" if mark.series is None else f"s{mark.series % len(SERIES_COLOURS)}"
            dashes = ' stroke-dasharray="5 4"' if mark.is_dashed else ""
            return (
                f'<polyline class="line {colour}" points="{_points(mark.points)}" '
                f'stroke-width="{mark.width:g}"{dashes}/>'
            )
        case Area():
            title = f"<title>{escape(mark.title)}</title>" if mark.title else ""
            return (
                f'<polygon class="area s{mark.series % len(SERIES_COLOURS)}" points="{_points(mark.points)}" '
                f'fill-opacity="{mark.opacity:g}">{title}</polygon>'
            )
        case Words():
            style = ' font-weight="600"' if mark.is_bold else ""
            if mark.angle:
                style += f' transform="rotate({mark.angle:g} {mark.x:.1f} {mark.y:.1f})"'
            return (
                f'<text class="{mark.role}" x="{mark.x:.1f}" y="{mark.y:.1f}" text-anchor="{mark.anchor}" '
                f'font-size="{mark.size}"{style}>{escape(mark.text)}</text>'
            )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def to_png(sheet: Sheet, scale: int = 2) -> bytes:
    """The drawing on white, for documents that take no SVG."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (sheet.width * scale, sheet.height * scale), "white")
    pen = ImageDraw.Draw(image, "RGBA")
    for mark in sheet.marks:
        match mark:
            case Path():
                colour = _PNG_COLOURS["grid"] if mark.series is None else _series_colour(mark.series)
                points = [(x * scale, y * scale) for x, y in mark.points]
                pen.line(points, fill=colour, width=max(1, round(mark.width * scale)), joint="curve")
            case Area():
                alpha = f"{round(255 * mark.opacity):02x}"
                pen.polygon(
                    [(x * scale, y * scale) for x, y in mark.points], fill=_series_colour(mark.series) + alpha
                )
            case Words():
                font = ImageFont.load_default(mark.size * scale)
                anchor = {"start": "ls", "middle": "ms", "end": "rs"}[mark.anchor]
                place = (mark.x * scale, mark.y * scale)
                letters = Image.new("L", image.size)
                ImageDraw.Draw(letters).text(place, mark.text, fill=255, font=font, anchor=anchor)
                if mark.angle:
                    letters = letters.rotate(-mark.angle, Image.Resampling.BICUBIC, center=place)
                image.paste(_PNG_COLOURS[mark.role], mask=letters)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _series_colour(series: int) -> str:
    return SERIES_COLOURS[series % len(SERIES_COLOURS)]
