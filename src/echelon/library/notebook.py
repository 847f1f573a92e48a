"""What a notebook shows of a run: how far it is, and its curves."""

from __future__ import annotations

import base64
import sys
import time
from html import escape
from importlib import import_module
from typing import Any

from echelon.explain.history import RecordStore
from echelon.explain.report import build_report
from echelon.explain.sheet import Sheet, standalone_svg
from echelon.runfolder import RunFolder

_EVERY_S = 2.0
"""Seconds between two drawings: a front end keeps up, and a long run's records are not read all the time."""
_CHARTS = ("loss", "score")


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook, which shows HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def render_run(run: RunFolder, words: str, store: RecordStore | None = None) -> str:
    """A run in a few lines of HTML: its state, its loss and its scores."""
    report = build_report(run, store=store)
    done, planned = report.history.last_step, report.history.planned_steps
    bar = f'<progress value="{done}" max="{planned}" style="width:40em"></progress>'
    figures = "".join(_image(report.charts[name]) for name in _CHARTS if name in report.charts)
    return f"<div><code>{escape(words)}</code><br>{bar}<br>{figures}</div>"


def _image(sheet: Sheet) -> str:
    """A chart as an image, so that its style stays its own."""
    data = base64.b64encode(standalone_svg(sheet).encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{data}" alt="{escape(sheet.title, quote=True)}" width="480">'


class NotebookProgress:
    """Shows a run below the cell that trains it, drawn anew every few seconds."""

    def __init__(self, run: RunFolder) -> None:
        self._run, self._store = run, RecordStore()
        self._handle: Any = None
        self._drawn = time.monotonic()

    def update(self, words: str, *, is_last: bool = False) -> None:
        """Draw it if that is due."""
        now = time.monotonic()
        if now - self._drawn < _EVERY_S and not is_last:
            return
        self._drawn = now
        display: Any = import_module("IPython.display")
        page = display.HTML(render_run(self._run, words, self._store))
        if self._handle is None:
            self._handle = display.display(page, display_id=True)
        else:
            self._handle.update(page)
