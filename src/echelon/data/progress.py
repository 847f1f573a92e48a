"""How far the preparation of data is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["wait", "fetch", "hash", "clean", "count", "vocabulary", "encode", "train", "valid", "test"]


@dataclass(frozen=True)
class Progress:
    """How far a stage is."""

    stage: Stage
    done: int
    total: int
    """0 where it is not known."""
    unit: Literal["bytes", "pairs", "words", "pictures"]
    what: str = ""
    """Of a stage that goes through several things, which."""


Report = Callable[[Progress], None]


def waiting(report: Report, what: str) -> Callable[[], None]:
    """Reports that another process is at work, and on what, so that this one waits for it."""
    return lambda: report(Progress("wait", 0, 0, "bytes", f"for another process that {what}"))
