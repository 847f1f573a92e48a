"""Progress of data preparation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

PreparationStage = Literal[
    "wait", "fetch", "hash", "clean", "count", "vocabulary", "encode", "train", "valid", "test"
]


@dataclass(frozen=True)
class Progress:
    """A stage's progress."""

    stage: PreparationStage
    done: int
    total: int
    """0 if it is not known."""
    unit: Literal["bytes", "pairs", "words", "images"]
    what: str = ""
    """What a stage works on now, if it works through several things."""


ReportProgress = Callable[[Progress], None]


def waiting(report: ReportProgress, what: str) -> Callable[[], None]:
    """Reports that this process waits for another one, and why."""
    return lambda: report(Progress("wait", 0, 0, "bytes", f"for another process that {what}"))
