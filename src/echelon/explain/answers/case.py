"""What an answer is, and what answers are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, field

from echelon.data.images.store import ImageManifest
from echelon.data.prepared import Manifest
from echelon.explain.findings import StepTime, Traffic, step_time, traffic
from echelon.explain.history import History
from echelon.explain.workload import Workload


@dataclass(frozen=True)
class Answer:
    """One question."""

    key: str
    question: str
    verdict: str
    """The answer in one or two words, for programs."""
    answer: str
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """Everything that answers are drawn from."""

    history: History
    manifest: Manifest | ImageManifest | None
    workload: Workload | None
    hourly: float | None
    """Dollars for one host."""

    @property
    def time(self) -> StepTime:
        return step_time(self.history)

    @property
    def traffic(self) -> Traffic:
        return traffic(self.history, self.workload)
