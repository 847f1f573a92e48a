"""Tables of text."""

from __future__ import annotations

from collections.abc import Sequence


def render_table(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Rows under each other, columns as wide as they need; if that does not fit `width`, the cells of each row below
    each other, beside their headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        return _render_blocks(rows)
    return "\n".join(
        "  ".join(cell.ljust(wide) for cell, wide in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _render_blocks(rows: Sequence[Sequence[str]]) -> str:
    heading, *rest = rows
    label = max(map(len, heading[1:]))
    blocks = []
    for name, *cells in rest:
        lines = (
            f"  {head.ljust(label)}  {cell}".rstrip()
            for head, cell in zip(heading[1:], cells, strict=True)
            if cell
        )
        title = f"{heading[0]} {name}" if name.isdecimal() else name
        blocks.append("\n".join([title, *lines]))
    return "\n".join(blocks)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The same as Markdown, the first row being the heading."""
    heading, *rest = rows
    lines = [heading, ["---"] * len(heading), *rest]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)
