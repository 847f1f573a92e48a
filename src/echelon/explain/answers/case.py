"""What an answer is, and what answers are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from echelon.data.images.store import ImageManifest
from echelon.data.prepared import Manifest
from echelon.explain.findings import StepTime, Traffic, step_time, traffic
from echelon.explain.history import History
from echelon.explain.outlook import Outlook, loss_outlook, score_outlook
from echelon.explain.replanning import Replanning, replan
from echelon.explain.workload import Workload

NOT_MEASURED = "Not measured: the records do not say what a step's time was spent on."


@dataclass(frozen=True)
class Answer:
    """One question."""

    key: str
    question: str
    verdict: str
    """The answer in one or two words, for programs."""
    answer: str
    evidence: list[str] = field(default_factory=list)
    number: int | None = None
    """Among the eleven questions of the classic assignment on distributed training."""

    @property
    def heading(self) -> str:
        """The question, with its number if it has one."""
        return self.question if self.number is None else f"{self.number}. {self.question}"


@dataclass(frozen=True)
class Case:
    """Everything that answers are drawn from."""

    history: History
    manifest: Manifest | ImageManifest | None
    workload: Workload | None
    hourly: float | None
    """Dollars for one host."""

    @property
    def host_hours(self) -> float:
        """Of all hosts together, pauses left out."""
        return self.history.training_seconds / 3600 * self.history.hosts_given

    @property
    def cost(self) -> float | None:
        """Dollars so far; None if the price of a host is not known."""
        return None if self.hourly is None else self.host_hours * self.hourly

    @cached_property
    def time(self) -> StepTime:
        return step_time(self.history)

    @property
    def is_time_measured(self) -> bool:
        """Whether steps say what their time was spent on; those of other programs may not."""
        return self.time.seconds > 0

    @property
    def bound(self) -> str:
        """What a faster step needs more of."""
        return self.time.bound if self.is_time_measured else "not measured"

    @cached_property
    def traffic(self) -> Traffic:
        return traffic(self.history, self.workload)

    @cached_property
    def loss_outlook(self) -> Outlook | None:
        return loss_outlook(self.history)

    @cached_property
    def score_outlook(self) -> Outlook | str:
        return score_outlook(self.history)

    @cached_property
    def replanning(self) -> Replanning | None:
        """What it would have taken if one thing were different; None where its model is not known."""
        if self.workload is None:
            return None
        return replan(self.history, self.workload, self.time, self.traffic)
