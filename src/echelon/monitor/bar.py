"""Progress of anything that takes a while: a bar with ETA on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from echelon.monitor.screen import show_seconds

NARROW = 70
"""On narrower terminals numbers replace the bar."""
_NUMBERS = 16
"""Columns of percent and ETA."""
_QUIET_S = 2.0
"""Shorter work gets no line in a log."""


def open_bars(console: Console) -> Progress:
    """Bars that fit the terminal, with what is done, in percent, and the time left; nothing if it is not a terminal."""
    longest = console.width // 2 if console.width >= NARROW else console.width - _NUMBERS
    what = Column(no_wrap=True, overflow="ellipsis", max_width=longest)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False, table_column=what)]
    if console.width >= NARROW:
        columns += [BarColumn(bar_width=None), TaskProgressColumn(), TimeElapsedColumn()]
    else:
        columns += [TaskProgressColumn()]
    columns += [TextColumn("ETA"), TimeRemainingColumn(compact=True)]
    return Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class Show(Protocol):
    """Called with the share that is done, from 0 to 1 or None if it is not known, and with what is being done now."""

    def __call__(self, share: float | None, doing: str = "") -> None: ...


@contextmanager
def working(console: Console, what: str) -> Iterator[Show]:
    """Show how far `what` is; if the share that is done is not known, the time that has passed."""
    if not console.is_terminal:
        console.print(f"{what} ...", soft_wrap=True)
    lines = _Lines(console, what)
    with open_bars(console) as bars:
        task = bars.add_task(what, total=None)

        def show(share: float | None, doing: str = "") -> None:
            if doing:
                bars.update(task, description=f"{what}: {doing}")
            if share is not None:
                bars.update(task, total=1.0, completed=share)
            if not console.is_terminal:
                lines.show(share, doing)

        yield show


class _Lines:
    """A line for every tenth of the work."""

    def __init__(self, console: Console, what: str) -> None:
        self._console, self._what = console, what
        self._began = self._said = time.monotonic()
        self._tenth = 0

    def show(self, share: float | None, doing: str) -> None:
        if share is None:
            self._console.print(f"{self._what}: {doing} ...", soft_wrap=True, markup=False)
            return
        now, tenth = time.monotonic(), int(10 * share)
        if tenth <= self._tenth or now - self._said < _QUIET_S:
            return
        self._said, self._tenth = now, tenth
        left = show_seconds((now - self._began) / share * (1 - share))
        self._console.print(f"{self._what}: {share:.0%}, ETA {left}", soft_wrap=True)
