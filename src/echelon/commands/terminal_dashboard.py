"""A run on a terminal: progress, curves, where a step's time goes, hosts, and the latest events."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from echelon.errors import EchelonError
from echelon.explain.curves import smooth
from echelon.explain.history import RecordStore
from echelon.explain.host_samples import find_lost, host_table
from echelon.explain.report import Report, build_report
from echelon.explain.units import show_count, show_share, show_step
from echelon.monitor.screen import describe_record, show_seconds
from echelon.runfolder import RunFolder

_BARS = "▁▂▃▄▅▆▇█"
_EVERY_S = 1.0
_EVENTS = 6
_LONGEST_BAR = 40
_BESIDE_BARS = 37
"""Columns for labels, numbers and the frame."""
_HOST_COLUMNS = ("processors", "GPUs", "hottest", "card", "in", "out")


class Dashboard:
    """A `Screen` that redraws the whole run, at most once a second.

    It has the terminal's alternate screen, on which a change of width leaves no broken lines behind, and prints the
    run once more when that is closed.
    """

    def __init__(self, run: RunFolder, console: Console) -> None:
        self._run, self._store = run, RecordStore()
        self._events: list[str] = []
        self._next = 0.0
        self._console = console
        self._live = Live(console=console, auto_refresh=False, screen=True)
        self._live.start()

    def recall(self, record: dict[str, Any]) -> None:
        """Nothing: it is drawn from all records."""

    def show(self, record: dict[str, Any]) -> None:
        if record["kind"] != "step":
            self._events += describe_record(record)
        if time.monotonic() >= self._next:
            self._draw()

    def _draw(self) -> None:
        started = time.monotonic()
        shown = self._render()
        if shown is not None:
            self._live.update(shown, refresh=True)
            self._next = time.monotonic() + max(_EVERY_S, 10 * (time.monotonic() - started))

    def _render(self) -> RenderableType | None:
        """The run as it is now; None while its folder is being written."""
        try:
            report = build_report(self._run, store=self._store)
        except EchelonError:
            return None
        return render_dashboard(report, self._events[-_EVENTS:], self._console.width)

    def close(self) -> None:
        self._live.stop()
        shown = self._render()
        if shown is not None:
            self._console.print(shown)


def render_dashboard(report: Report, events: Sequence[str], width: int = 100) -> RenderableType:
    """Everything in a panel `width` columns wide."""
    history = report.history
    room = max(8, min(_LONGEST_BAR, width - _BESIDE_BARS))
    step = history.last_step
    heading = f"{report.name}  {history.outcome}, step {step:,} of {history.planned_steps:,}"
    parts: list[RenderableType] = [
        _progress(step, history.planned_steps),
        *([Text(str(history.test), style="bold")] if history.test else []),
        _curves(report, room),
        _phases(report, room),
    ]
    if history.host_samples:
        parts.append(_hosts(report))
    parts += [Text(event, style="dim", overflow="ellipsis", no_wrap=True) for event in events]
    leave = "q leaves; the run continues" if history.outcome == "training" else None
    return Panel(Group(*parts), title=Text(heading), subtitle=leave)


def _progress(step: int, planned: int) -> Table:
    table = Table.grid(expand=True)
    table.add_row(ProgressBar(total=max(1, planned), completed=step))
    return table


def _curves(report: Report, room: int) -> Table:
    history = report.history
    _, losses = history.losses()
    metric, key = history.metric
    scores = [record[key] for record in history.valid if record.get(key) is not None]
    speed = [
        step["targets"] / step["seconds"] for step in history.steps if step.get("targets") and step["seconds"]
    ]
    table = Table.grid(padding=(0, 2))
    if losses:
        table.add_row(
            "training loss", f"{history.last_loss:.3f}", sparkline(list(map(float, smooth(losses))), room)
        )
    if scores:
        table.add_row(f"validation {metric}", f"{scores[-1]:.2f}", sparkline(scores, room))
    if speed:
        table.add_row(
            f"{history.unit.split()[-1]}/s",
            show_count(history.targets_per_second),
            sparkline(list(map(float, smooth(speed))), room),
        )
    left = history.seconds_left
    eta = history.outcome if left is None else f"{show_seconds(left)} to go"
    table.add_row("step", show_step(history.pace), f"{show_seconds(history.training_seconds)} so far, {eta}")
    return table


def _phases(report: Report, room: int) -> Table:
    total = report.case.time.seconds or 1.0
    table = Table.grid(padding=(0, 2))
    for name, seconds in report.case.time.parts().items():
        if seconds / total >= 0.005:
            table.add_row(name, show_share(seconds / total), "█" * max(1, round(room * seconds / total)))
    return table


def _hosts(report: Report) -> Table:
    history = report.history
    heading, rows = host_table(history.host_samples, _HOST_COLUMNS, find_lost(history))
    table = Table(box=None, pad_edge=False)
    for name in heading:
        table.add_column(name, style="bold" if name == "host" else "")
    for host, cells in rows:
        table.add_row(host, *cells)
    return table


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line of at most `width` characters, its lowest value at the bottom.

    Values that are not finite are left out.
    """
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    size = max(1, -(-len(values) // width))
    means = [
        sum(values[start : start + size]) / len(values[start : start + size])
        for start in range(0, len(values), size)
    ]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in means)
