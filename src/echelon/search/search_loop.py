"""The loop of a search: fill free places with trials, write down what becomes of them, until nothing is left to do."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from echelon.errors import TrainingError
from echelon.launch.stop_requests import StopRequests
from echelon.monitor.records import RecordWriter
from echelon.search.rungs import Halving, next_trial
from echelon.search.trials import RungResult, Trial

_POLL_S = 0.2
_MOST_KILLS = 3
"""Times that a trial is begun again after it was killed, in one search."""
_HOPELESS = 3
"""Trials that fail before any other has a result: then the reason is hardly their settings."""


@dataclass(frozen=True)
class TrialOutcome:
    """What became of a training up to a rung."""

    kind: Literal["arrived", "stopped", "killed", "failed"]
    result: RungResult | None = None
    is_over: bool = False
    """arrived: it will train no further, perhaps because it stopped early."""
    message: str = ""
    """failed, killed: why."""


class TrialTraining(Protocol):
    """A trial while it is being trained."""

    def poll(self) -> TrialOutcome | None:
        """What became of it; None while it trains."""
        ...

    def stop(self) -> None:
        """Have it save and leave; a second time, end it at once."""
        ...


Begin = Callable[[Trial, int, int], TrialTraining]
"""Train a trial to a rung, in one of the places that work side by side."""


@dataclass
class SearchLoop:
    """A search under way."""

    rules: Halving
    trials: list[Trial]
    records: RecordWriter
    begin: Begin
    propose: Callable[[int], Trial | None]
    """A new trial by its number; None if there are no more settings."""
    tell: Callable[[str], None]
    parallel: int = 1
    stops: StopRequests = field(default_factory=StopRequests)
    _running: dict[int, tuple[Trial, int, TrialTraining]] = field(default_factory=dict)
    """By place."""
    _kills: Counter[int] = field(default_factory=Counter)
    _stopped_by_hand: set[int] = field(default_factory=set)

    def run(self) -> None:
        """Return when every trial is where it is to end, or has saved because somebody wants to stop."""
        level = 0
        try:
            while True:
                self._collect()
                if self.stops.level > level:
                    level = self.stops.level
                    if level == 1:
                        self.tell(
                            "stopping: the trials finish their step and save; Ctrl-C again ends them without saving"
                        )
                    self._stop_all()
                if not self.stops.is_set:
                    self._fill()
                if not self._running:
                    return
                time.sleep(_POLL_S)
        finally:
            if self._running:
                self._stop_all()
                self._wait()

    def is_complete(self) -> bool:
        """Whether every trial is where it is to end."""
        return self._count_missing() == 0 and next_trial(self.trials, self.rules, ()) is None

    def retry_failed(self) -> None:
        """Have failed trials of an earlier start tried again, unless everything else is done."""
        if self.is_complete():
            return
        for trial in self.trials:
            if trial.failure is not None:
                self.records.write("retry", trial=trial.number)
                trial.failure = None

    def _count_missing(self) -> int:
        return max(0, self.rules.trials - len(self.trials))

    def _fill(self) -> None:
        """Give every free place something to do, if there is something."""
        for place in range(self.parallel):
            if place in self._running:
                continue
            busy = {trial.number for trial, _, _ in self._running.values()} | self._stopped_by_hand
            chosen = next_trial(self.trials, self.rules, busy)
            if chosen is None and self._count_missing():
                chosen = self._add_trial(busy)
            if chosen is None:
                return
            trial, rung = chosen
            self._running[place] = (trial, rung, self.begin(trial, rung, place))

    def _add_trial(self, busy: set[int]) -> tuple[Trial, int] | None:
        trial = self.propose(len(self.trials))
        if trial is None:
            # Those that there are decide among themselves; the others will never come.
            self.rules = replace(self.rules, trials=len(self.trials))
            return next_trial(self.trials, self.rules, busy)
        self.records.write("trial", **trial.record())
        self.trials.append(trial)
        return trial, 0

    def _collect(self) -> None:
        """Write down what has become of trials."""
        for place, (trial, rung, training) in list(self._running.items()):
            outcome = training.poll()
            if outcome is not None:
                del self._running[place]
                self._note(trial, rung, outcome)

    def _note(self, trial: Trial, rung: int, outcome: TrialOutcome) -> None:
        match outcome.kind:
            case "arrived":
                assert outcome.result is not None
                last = len(trial.rungs) - 1 if outcome.is_over else rung
                for reached in range(rung, last + 1):
                    self._note_result(trial, reached, outcome.result)
            case "failed":
                self._note_failure(trial, outcome.message)
            case "stopped" if not self.stops.is_set:
                self._stopped_by_hand.add(trial.number)
                self.tell(f"{trial.name} was stopped by somebody else; the same command continues it")
            case "killed" if not self.stops.is_set:
                self._kills[trial.number] += 1
                if self._kills[trial.number] > _MOST_KILLS:
                    self._note_failure(trial, outcome.message)
                else:
                    self.tell(f"{trial.name} {outcome.message}; it resumes")

    def _note_result(self, trial: Trial, rung: int, result: RungResult) -> None:
        self.records.write("rung", trial=trial.number, rung=rung, step=result.step, value=result.value)
        trial.results[rung] = result
        if rung == trial.furthest:
            self.tell(f"{trial.name} at step {result.step:,}: {result.value:.6g}")

    def _note_failure(self, trial: Trial, message: str) -> None:
        self.records.write("failure", trial=trial.number, message=message)
        trial.failure = message
        self.tell(f"{trial.name} failed: {message}")
        if len(self.trials) >= _HOPELESS and all(other.failure is not None for other in self.trials):
            raise TrainingError(f"all {len(self.trials)} trials so far have failed; the last one: {message}")

    def _stop_all(self) -> None:
        for _, _, training in self._running.values():
            training.stop()

    def _wait(self) -> None:
        """Wait until all have left, after an error here."""
        while self._running:
            for place, (_, _, training) in list(self._running.items()):
                if training.poll() is not None:
                    del self._running[place]
            time.sleep(_POLL_S)
