"""How `--help` reads: options under headings, plain placeholders, examples at the end; at any width, in any terminal.

Typer's own panels put three columns into boxes, which leaves a few letters for each on a narrow terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_PLACEHOLDERS = {
    "int": "N",
    "int range": "N",
    "float": "X",
    "float range": "X",
    "path": "PATH",
    "str": "TEXT",
}
_TRIVIAL_RANGE = re.compile(r"(; )?\bx>=(0\.\d+|[01](\.0)?)(?=\])(; )?|(; )?\brequired\b")


class HelpCommand(TyperCommand):
    """A verb's help."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [_plain(piece) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        write_sections(formatter, _rows_of_params(self.get_params(ctx), ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(formatter, self.epilog)


class HelpGroup(TyperGroup):
    """The help of `echelon`, of `echelon lab` and of `echelon cloud`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (getattr(command, "rich_help_panel", None) or "Commands", name, command.get_short_help_str(200))
            for name, command in commands
            if command is not None
        ]
        write_sections(formatter, [*rows, *_rows_of_params(self.get_params(ctx), ctx)])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(formatter, self.epilog)


def write_sections(formatter: Any, rows: Iterable[tuple[str, str, str]]) -> None:
    """Write rows of (heading, name, text), each heading once, in the order in which they first appear."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for heading, name, text in rows:
        sections.setdefault(heading, []).append((name, text))
    for heading, entries in sections.items():
        with formatter.section(_styled(heading)):
            formatter.write_dl(entries, col_max=max(16, formatter.width // 3))


def write_examples(formatter: Any, examples: str | None) -> None:
    """Write commands as they are typed, whatever the width."""
    if examples:
        with formatter.section(_styled("Examples")):
            for line in examples.splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


def _rows_of_params(params: Iterable[Any], ctx: Any) -> list[tuple[str, str, str]]:
    rows = []
    for param in params:
        record = param.get_help_record(ctx)
        if record is None:
            continue
        is_argument = param.param_type_name == "argument"
        name = record[0].partition(" <")[0] if is_argument else _placeholder(record[0])
        panel = getattr(param, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
        rows.append((panel, name, _TRIVIAL_RANGE.sub("", record[1]).replace("  []", "")))
    return sorted(rows, key=lambda row: (row[0] != "Arguments", row[0] != "Options", row[1].startswith("-h")))


def _placeholder(name: str) -> str:
    """`--steps <int range>` as `--steps N`, `--format <text|html>` as `--format text|html`."""
    return re.sub(r"<([^>]+)>", lambda found: _PLACEHOLDERS.get(found[1], found[1]), name)


def _plain(piece: str) -> str:
    """`{RUN...}...` as `RUN...`, and `[FOLDER...]...` as `[FOLDER...]`."""
    return re.sub(r"\{(.+?)\}", r"\1", piece).replace("......", "...").replace("...]...", "...]")


def _styled(heading: str) -> str:
    is_plain = not sys.stdout.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return heading if is_plain else typer.style(heading, bold=True)
