"""The one way to a person's terminal: what others wrote cannot act on it.

Names, messages and logs come from run folders and hosts that may be anybody's. Rich passes escape sequences in them on
as they are, and reads square brackets as styles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from echelon.untrusted import printable


class SafeConsole(Console):
    """A console on which only Rich itself writes escape sequences: brackets are brackets, and :100: is no emoji."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"markup": False, "highlight": False, "emoji": False, **settings})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As Rich does, which goes through here with everything that it prints, in tables and live displays too."""
        for segment in super().render(renderable, options):
            is_ours = segment.control is not None
            yield segment if is_ours else Segment(printable(segment.text), segment.style)


def write_out(text: str) -> None:
    """Write to stdout; JSON stays JSON."""
    sys.stdout.write(printable(text))
