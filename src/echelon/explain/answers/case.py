"""An answer, and the data that answers are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from echelon.explain.diagnosis import StepTime, Traffic, step_time, traffic
from echelon.explain.history import History
from echelon.explain.outlook import Outlook, loss_outlook, score_outlook
from echelon.explain.units import show_steps
from echelon.explain.what_if import Replanning, replan
from echelon.explain.workload import Workload

_FEWEST_STEPS = 8
NOT_MEASURED = "Not measured: the records do not say what a step's time was spent on."


def note_of_steps(history: History, *, of_first: bool = False) -> list[str]:
    """Of which steps an answer speaks, if workers or hosts have changed: those of all workers, or of the first."""
    step = history.first.layout_step if of_first else max(worker.layout_step for worker in history.workers)
    if not step:
        return []
    counted = f"counts the steps after {step:,}, with the current workers and hosts"
    if is_too_short(history):
        counted += f": only {show_steps(len(history.first.typical()))}, too few to rely on"
    return [f"{counted}; question 10 has the earlier ones"]


def is_too_short(history: History) -> bool:
    """Whether so few steps were made since workers or hosts changed that their times say little."""
    return bool(history.first.layout_step) and len(history.first.typical()) < _FEWEST_STEPS


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
    """Everything that answers are computed from."""

    history: History
    manifest: Any
    """Of the prepared data, each task's own; None if they are not on this machine."""
    workload: Workload | None
    hourly: float | None
    """Dollars for one host."""

    @property
    def host_hours(self) -> float:
        """All hosts together, without pauses; one that was lost is paid for to the end of its launch."""
        return self.history.host_seconds / 3600

    @property
    def cost(self) -> float | None:
        """Dollars so far; None if the price of a host is not known."""
        return None if self.hourly is None else self.host_hours * self.hourly

    @cached_property
    def time(self) -> StepTime:
        return step_time(self.history)

    @property
    def is_time_measured(self) -> bool:
        """Whether steps record their phases; other programs' records may not."""
        return self.time.seconds > 0

    @property
    def bound(self) -> str:
        """The resource that limits a step."""
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
        """What it would have taken with one thing changed; None for unknown workloads and steps that only waited."""
        time = self.time
        worked = time.input + time.compute + time.optimiser + time.other + time.checkpoint
        if self.workload is None or not worked:
            return None
        return replan(self.history, self.workload, self.time, self.traffic)
