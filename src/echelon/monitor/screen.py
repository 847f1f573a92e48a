"""What is shown while a run trains: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from echelon.monitor.means import StepMeans
from echelon.monitor.records import RecordReader, is_number
from echelon.recipe.tasks import all_scores

_WIDE = 100
"""Columns from which a line of progress has room for everything."""
_NEEDED = {"start": ("step", "steps"), "step": ("step", "targets", "seconds")}
"""What records must have to be counted, by kind."""
_SHOWN = {
    "start": ("step", "steps", "workers"),
    "step": ("step", "targets", "seconds", "learning_rate"),
    "valid": ("step", "seconds"),
    "sample": ("source", "output"),
    "event": ("message",),
    "score": ("split", "checkpoint"),
}
"""What records must have to be shown, by kind. Those of hosts may lack anything."""
_NARROW = 70
"""Columns below which there is room for the step, the loss and the ETA only."""


class Screen(Protocol):
    """Shows records as they come."""

    def recall(self, record: dict[str, Any]) -> None:
        """Count a record from before, which is not shown, in the loss and the speed."""

    def show(self, record: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class Speed(StepMeans):
    """Targets per second, and the loss, in the words of the run."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = "tokens"
        """The unit of targets, from the run's `start` record."""

    def start(self, record: dict[str, Any]) -> None:
        """Continue from a `start` record."""
        self.unit = str(record.get("unit", "tokens"))
        self.resume(record)

    def recall(self, record: dict[str, Any]) -> None:
        """Count a `start` or `step` record from before; a start that found nothing to do counts for nothing."""
        if any(not is_number(record.get(name)) for name in _NEEDED.get(record["kind"], ())):
            return  # of another program, or damaged
        if record["kind"] == "start" and record["step"] < record["steps"]:
            self.start(record)
        elif record["kind"] == "step":
            self.add(record)

    def __str__(self) -> str:
        return f"{self.per_second:,.0f} {self.unit}/s"


class LineScreen:
    """Plain lines: a step now and then, and every event."""

    def __init__(self, say: Callable[[str], None], every: int) -> None:
        self._say = say
        self._every = every
        self._steps = 0
        self._speed = Speed()
        self._started: tuple[float, int] | None = None

    def recall(self, record: dict[str, Any]) -> None:
        self._speed.recall(record)
        if record["kind"] == "start":
            self._steps = record.get("steps") or self._steps
            self._started = None
        elif (
            record["kind"] == "step"
            and self._started is None
            and is_number(record.get("time"))
            and is_complete(record)
        ):
            self._started = (float(record["time"]), record["step"])

    def show(self, record: dict[str, Any]) -> None:
        if not is_complete(record):
            return
        if record["kind"] == "start":
            self._steps = record["steps"]
            self._started = None  # a group that was started again goes back to its checkpoint
            self._speed.start(record)
        if record["kind"] != "step":
            for line in describe_record(record):
                self._say(line)
            return
        self._speed.add(record)
        at = float(record.get("time") or 0.0)
        self._started = self._started or (at, record["step"])
        if record["step"] % self._every == 0 or record["step"] == self._steps:
            self._say(f"{describe_step(record, self._speed)}  ETA {self._eta(record['step'], at)}")

    def _eta(self, step: int, at: float) -> str:
        """Timed by the records: several may be shown at the same moment."""
        assert self._started is not None
        began, first = self._started
        if step == first:
            return "?"
        return show_seconds((at - began) / (step - first) * max(self._steps - step, 0))

    def close(self) -> None:
        """Lines need no closing."""


class BarScreen:
    """A progress bar with ETA, and events above it."""

    def __init__(self, console: Console) -> None:
        self._speed = Speed()
        self._is_narrow = console.width < _NARROW
        bar = BarColumn(bar_width=None if console.width >= _WIDE else 10)
        self._progress = Progress(
            *([] if self._is_narrow else [bar]),
            MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False),
            *([] if self._is_narrow else [TimeElapsedColumn()]),
            TextColumn("ETA"),
            TimeRemainingColumn(compact=self._is_narrow),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("training", total=None, words="", start=False)
        self._steps: int | None = None
        self._is_started = False

    def recall(self, record: dict[str, Any]) -> None:
        self._speed.recall(record)
        if record["kind"] == "start":
            self._steps = record.get("steps") or self._steps

    def show(self, record: dict[str, Any]) -> None:
        if not is_complete(record):
            return
        if record["kind"] == "start":
            self._speed.start(record)
            self._steps = record["steps"]
            self._start_bar(record["step"])
        if record["kind"] != "step":
            for line in describe_record(record):
                self._progress.console.print(line, markup=False, highlight=False)
            return
        self._speed.add(record)
        if not self._is_started:
            self._start_bar(record["step"])
        words = f"loss {_loss(record, self._speed)}"
        if not self._is_narrow:
            words += f"  {self._speed}"
        if self._progress.console.width >= _WIDE:
            words += f"  rate {record['learning_rate']:.2e}"
        self._progress.update(self._bar, completed=record["step"], words=words)

    def _start_bar(self, step: int) -> None:
        self._progress.start()
        self._progress.update(self._bar, total=self._steps, completed=step)
        self._progress.start_task(self._bar)
        self._is_started = True

    def close(self) -> None:
        self._progress.stop()


def follow_records(path: Path, screen: Screen) -> RecordReader:
    """A reader of a worker's records from now on; `screen` is given those before."""
    reader = RecordReader(path)
    for record in reader.read():
        screen.recall(record)
    return reader


def open_screen(console: Console, log_every: int) -> Screen:
    """A bar if `console` is a terminal, lines if it is not."""
    if console.is_terminal:
        return BarScreen(console)

    def say(line: str) -> None:
        # They may go into the log of `--detach`, on a full disk: training does not depend on them.
        with contextlib.suppress(OSError):
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    return LineScreen(say, log_every)


def is_complete(record: dict[str, Any]) -> bool:
    """Whether a record has all that its kind shows; only the loss and the gradient of a step may be unknown."""
    unknown = {"loss", "gradient_norm"} if record["kind"] == "step" else set[str]()
    return unknown <= record.keys() and all(
        record.get(name) is not None for name in _SHOWN.get(record["kind"], ())
    )


def describe_step(record: dict[str, Any], speed: Speed) -> str:
    return (
        f"step {record['step']}  loss {_loss(record, speed)}  {speed}  "
        f"rate {record['learning_rate']:.3e}  gradient norm {_number(record['gradient_norm'])}"
    )


def describe_record(record: dict[str, Any]) -> list[str]:
    """The lines for a record that is not a step; none for those that only later readers need."""
    if not is_complete(record):
        return []
    match record["kind"]:
        case "start":
            workers = "1 worker" if record["workers"] == 1 else f"{record['workers']} workers"
            if record["step"] >= record["steps"]:
                return [f"training is complete already: {record['steps']} steps"]
            begin = f"resumes at step {record['step']}" if record["step"] else "starts"
            kernels = f", {record['kernels']}" if record.get("kernels") else ""
            return [f"training {begin}: {record['steps']} steps, {workers}{kernels}"]
        case "valid":
            return [
                f"step {record['step']}  validation  {describe_scores(record)}  ({show_seconds(record['seconds'])})"
            ]
        case "sample":
            return [f"    {_shortened(record['source'])}  ->  {_shortened(record['output'])}"]
        case "event":
            return [record["message"]]
        case "score":
            return [f"{record['split']}  {describe_scores(record)}  ({record['checkpoint']})"]
        case _:
            return []


def describe_scores(record: dict[str, Any]) -> str:
    """Whatever scores a record has, in words."""
    found = [score.format(record[score.key]) for score in all_scores() if record.get(score.key) is not None]
    common = {"loss": "loss {:.4f}", "perplexity": "perplexity {:.2f}"}
    found += [text.format(record[name]) for name, text in common.items() if record.get(name) is not None]
    return "  ".join(found)


def show_seconds(seconds: float) -> str:
    """A duration for people: 0.4 s, 12 s, 3:05, 2:01:09."""
    whole = round(seconds)
    if whole < 10:
        return f"{seconds:.1f} s"
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _shortened(text: str) -> str:
    """At most 80 characters: a model that has learnt little yet repeats itself at length."""
    return text if len(text) <= 80 else f"{text[:77]}..."


def _loss(record: dict[str, Any], means: StepMeans) -> str:
    """The smoothed loss, as pages and reports have it, unless this step has none."""
    return _number(None if record["loss"] is None else means.loss)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"
