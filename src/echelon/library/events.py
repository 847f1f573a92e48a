"""What happens in a run, one thing at a time, and functions that are called when it does."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from echelon.monitor.records import is_number

EventKind = Literal["start", "step", "score", "save", "end", "note"]

_KINDS: Mapping[str, EventKind] = {
    "start": "start",
    "step": "step",
    "valid": "score",
    "score": "score",
    "checkpoint": "save",
    "end": "end",
    "event": "note",
}
"""The event that each kind of record becomes for those who follow a run."""
_OWN = ("kind", "time", "step")


class StopTraining(Exception):  # noqa: N818 - no error: a callback's way of saying that it is enough
    """Raised by a callback: the workers save and leave, and `train` returns."""


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    kind: EventKind
    """start, step, score (validation, and the test set at the end), save (a checkpoint), note, or end."""
    step: int | None
    """The step after which it happened; None for notes."""
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, Any]
    """What was measured: `loss`, `bleu`, `seconds`, ..."""

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __str__(self) -> str:
        numbers = {name: value for name, value in self.values.items() if is_number(value)}
        words = [f"{name} {value:.6g}" for name, value in numbers.items()]
        if self.kind in ("note", "end"):
            words = [str(self.values.get("message") or self.values.get("outcome") or "")]
        place = "" if self.step is None else f" {self.step}"
        return f"{self.kind}{place}: {', '.join(words)}"


@dataclass(frozen=True)
class Callbacks:
    """Functions that `train` calls while the workers train, each with an `Event`.

    They run in the process that called `train`, not in a worker. One that raises is reported and not called again; the
    workers know nothing of it. `StopTraining` and KeyboardInterrupt make the workers save and leave.
    """

    step: Callable[[Event], object] | None = None
    score: Callable[[Event], object] | None = None
    save: Callable[[Event], object] | None = None
    end: Callable[[Event], object] | None = None


class Caller:
    """Calls callbacks, and drops those that raise."""

    def __init__(self, callbacks: Callbacks) -> None:
        found = {field.name: getattr(callbacks, field.name) for field in fields(callbacks)}
        self._called = {name: callback for name, callback in found.items() if callback is not None}

    def __call__(self, event: Event) -> None:
        callback = self._called.get(event.kind)
        if callback is None:
            return
        try:
            callback(event)
        except StopTraining:
            raise
        except Exception:
            del self._called[event.kind]
            warnings.warn(
                f"the callback for {event.kind!r} is not called again, the training continues:\n"
                f"{traceback.format_exc()}",
                RuntimeWarning,
                stacklevel=2,
            )


def events_of(records: Iterator[Mapping[str, Any]]) -> Iterator[Event]:
    """The events that a worker's records tell of."""
    for record in records:
        kind = _KINDS.get(record["kind"])
        if kind is not None:
            step = record.get("step") if kind != "note" else None
            values = {name: value for name, value in record.items() if name not in _OWN}
            yield Event(kind, step, float(record.get("time") or 0.0), values)
