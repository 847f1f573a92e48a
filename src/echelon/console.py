"""The only way to write to a terminal: text from others cannot control it.

Names, messages and logs come from run folders and hosts that others may control. Rich passes escape sequences in them
on as they are, and reads square brackets as styles.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from echelon.untrusted import printable

Tell = Callable[[str], None]
"""Takes a message for the user."""


class SafeConsole(Console):
    """A console on which only Rich itself writes escape sequences: brackets are brackets, and :100: is not an emoji."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "highlight": False, "emoji": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Override the method through which Rich prints everything, tables and live displays too."""
        for segment in super().render(renderable, options):
            is_ours = segment.control is not None
            yield segment if is_ours else Segment(printable(segment.text), segment.style)


def message_console() -> SafeConsole:
    """Where progress and messages go: stderr, so that stdout holds results only.

    Lines are broken to fit a terminal only: in a pipe or a log a long path stays in one piece. A terminal that cannot
    draw progress bars is treated as a log.
    """
    is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
    is_log = is_dumb or not sys.stderr.isatty()
    return SafeConsole(stderr=True, force_terminal=False if is_dumb else None, soft_wrap=is_log)


def tell(console: Console, line: str) -> None:
    """Print a message: broken between words on a terminal, in one piece in a log."""
    console.print(line, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def output_width() -> int | None:
    """Columns of the terminal that stdout is, or as the environment's COLUMNS says; None if it is a file or a pipe,
    whose lines are left alone."""
    is_told = os.environ.get("COLUMNS", "").isdecimal()
    return shutil.get_terminal_size().columns if is_told or sys.stdout.isatty() else None


def wrap(text: str, width: int | None) -> str:
    """Break lines between words to fit a terminal; what follows a label is continued below it, not below the label."""
    return text if width is None else "\n".join(_wrap_line(line, width) for line in text.split("\n"))


def _wrap_line(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    label = re.match(r" *(?:- |\S+(?: \S+)*  +)?", line)
    indent = len(label[0]) if label is not None and len(label[0]) <= width // 2 else 2
    begin = line[:indent] if label is not None and indent == len(label[0]) else ""
    broken = textwrap.wrap(
        line[len(begin) :], max(20, width - indent), break_long_words=False, break_on_hyphens=False
    )
    return begin + f"\n{'':{indent}}".join(broken)


def write_out(text: str) -> None:
    """Write to stdout; JSON stays JSON."""
    sys.stdout.write(printable(text))
