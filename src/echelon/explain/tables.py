"""Tables of text."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "*": r"$^{*}$",
}
_NUMBER = re.compile(r"[+-]\d+(\.\d*)?(e[+-]\d+)?")
_SIGN = re.compile(r"(?<!\w)[+-](?=\d)")


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


def csv_table(rows: Sequence[Sequence[str]]) -> str:
    """The same as CSV; a spreadsheet does not take a name for a formula."""
    out = io.StringIO()
    safe = [[f"'{cell}" if _is_formula(cell) else cell for cell in row] for row in rows]
    csv.writer(out, lineterminator="\n").writerows(safe)
    return out.getvalue()


def _is_formula(cell: str) -> bool:
    return cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(cell)


def latex_table(rows: Sequence[Sequence[str]], note: str) -> str:
    """The same as LaTeX for a paper, which needs the package booktabs; the note is a comment below it."""
    heading, *rest = (" & ".join(map(_latex, row)) + r" \\" for row in rows)
    columns = "l" + "r" * (len(rows[0]) - 1)
    body = [r"\toprule", heading, r"\midrule", *rest, r"\bottomrule"]
    comment = "".join(f"% {line}\n" for line in note.splitlines())
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}", comment])


def _latex(text: str) -> str:
    plain = " ".join(text.split())
    escaped = "".join(
        _LATEX.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in plain
    )
    return _SIGN.sub(r"$\g<0>$", escaped)
