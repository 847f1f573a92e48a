"""A run on a terminal: how far it is, its curves, where a step's time goes, its hosts, and what happened last."""

from __future__ import annotations

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
from echelon.explain.report import Report, build_report
from echelon.explain.wording import show_count, show_rate, show_share, show_step
from echelon.monitor.screen import describe_record, show_seconds
from echelon.runfolder import RunFolder

_BARS = "▁▂▃▄▅▆▇█"
_EVERY_S = 1.0
_EVENTS = 6


class Dashboard:
    """A `Screen` that draws the whole run anew, at most once a second."""

    def __init__(self, run: RunFolder, console: Console) -> None:
        self._run, self._store = run, RecordStore()
        self._events: list[str] = []
        self._next = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, record: dict[str, Any]) -> None:
        if record["kind"] != "step":
            self._events += describe_record(record)
        if time.monotonic() >= self._next:
            self._draw()

    def _draw(self) -> None:
        started = time.monotonic()
        try:
            report = build_report(self._run, store=self._store)
        except EchelonError:
            return  # the folder is being written; the next look shows it
        self._live.update(render_dashboard(report, self._events[-_EVENTS:]), refresh=True)
        self._next = time.monotonic() + max(_EVERY_S, 10 * (time.monotonic() - started))

    def close(self) -> None:
        self._draw()
        self._live.stop()


def render_dashboard(report: Report, events: Sequence[str]) -> RenderableType:
    """Everything in a panel."""
    history = report.history
    step = int(history.steps[-1]["step"]) if history.steps else 0
    heading = f"{report.name}  {history.outcome}, step {step:,} of {history.planned_steps:,}"
    parts: list[RenderableType] = [
        _progress(step, history.planned_steps),
        _curves(report),
        _phases(report),
    ]
    if history.host_samples:
        parts.append(_hosts(report))
    parts += [Text(event, style="dim", overflow="ellipsis", no_wrap=True) for event in events]
    return Panel(Group(*parts), title=Text(heading))


def _progress(step: int, planned: int) -> Table:
    table = Table.grid(expand=True)
    table.add_row(ProgressBar(total=max(1, planned), completed=step))
    return table


def _curves(report: Report) -> Table:
    history = report.history
    _, losses = history.losses()
    metric, key = history.metric
    scores = [record[key] for record in history.valid if record.get(key) is not None]
    speed = [
        step["targets"] / step["seconds"] for step in history.steps if step.get("targets") and step["seconds"]
    ]
    table = Table.grid(padding=(0, 2))
    if losses:
        table.add_row("loss", f"{smooth(losses)[-1]:.3f}", sparkline(list(map(float, smooth(losses)))))
    if scores:
        table.add_row(metric, f"{scores[-1]:.2f}", sparkline(scores))
    if speed:
        table.add_row(
            f"{history.unit.split()[-1]}/s",
            show_count(float(smooth(speed)[-1])),
            sparkline(list(map(float, smooth(speed)))),
        )
    pace = sum(history.totals.values()) / max(1, len(history.steps))
    left = history.planned_steps - (int(history.steps[-1]["step"]) if history.steps else 0)
    eta = f"{show_seconds(left * pace)} to go" if history.outcome == "training" else history.outcome
    table.add_row(
        "step", show_step(history.seconds_per_step), f"{show_seconds(history.seconds)} so far, {eta}"
    )
    return table


def _phases(report: Report) -> Table:
    total = report.case.time.seconds or 1.0
    table = Table.grid(padding=(0, 2))
    for name, seconds in report.case.time.parts().items():
        if seconds / total >= 0.005:
            table.add_row(name, show_share(seconds / total), "█" * max(1, round(40 * seconds / total)))
    return table


def _hosts(report: Report) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("host", "processors", "GPUs", "card", "in", "out"):
        table.add_column(heading, style="bold" if heading == "host" else "")
    for host, sample in {str(s["host"]): s for s in report.history.host_samples}.items():
        received, sent = (sample.get("cards") or {}).get(sample.get("card"), (0, 0))
        seconds, gpus = sample.get("seconds") or 1.0, sample.get("gpus") or []
        busy = show_share(sum(gpu["busy"] for gpu in gpus) / len(gpus)) if gpus else "-"
        table.add_row(
            host,
            show_share(sample["processors"]),
            busy,
            str(sample.get("card") or "-"),
            show_rate(received / seconds),
            show_rate(sent / seconds),
        )
    return table


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """A curve in one line of text, its lowest value at the bottom."""
    size = max(1, -(-len(values) // width))
    means = [
        sum(values[start : start + size]) / len(values[start : start + size])
        for start in range(0, len(values), size)
    ]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in means)
