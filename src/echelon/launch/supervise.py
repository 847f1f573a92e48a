"""Workers that fail are started again from the newest checkpoint: how often, with how many, and when not."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from echelon.errors import FINAL_STATUS, TrainingError, WorkerError
from echelon.launch.local import LocalJob, StopRequests, signals_call
from echelon.recipe.schema import Restart as RestartRecipe
from echelon.recipe.workers import WorkerRange


@dataclass(frozen=True)
class Failure:
    """The end of a group of workers, of which one failed."""

    time_s: float
    workers: int
    is_final: bool
    """No restart can help: the user's mistake, or training that cannot go on."""


@dataclass(frozen=True)
class Restart:
    """Start the group again."""

    number: int
    """This is the so-many-th restart within the window."""
    workers: int


@dataclass(frozen=True)
class GiveUp:
    """Let the failure stand."""

    restarts: int
    """How many restarts were tried within the window."""


@dataclass(frozen=True)
class RestartPolicy:
    """At most `max_restarts` restarts within any `window_s` seconds, with workers within `workers`."""

    max_restarts: int
    window_s: float
    workers: WorkerRange

    def decide(self, failures: Sequence[Failure], now_s: float) -> Restart | GiveUp:
        """What to do after the last of `failures`, each of the earlier ones having been followed by a restart."""
        last = failures[-1]
        restarts = sum(now_s - failure.time_s < self.window_s for failure in failures[:-1])
        if last.is_final or restarts >= self.max_restarts:
            return GiveUp(restarts)
        return Restart(restarts + 1, self.workers.after_a_failure(last.workers))


def policy_of(recipe: RestartRecipe, workers: WorkerRange) -> RestartPolicy:
    """The recipe's `[restart]`, for a run on `workers`."""
    return RestartPolicy(recipe.max_restarts, recipe.window_minutes * 60, workers)


class Tell(Protocol):
    """Shows a message to the user and keeps it, with its values, in the launcher's records."""

    def __call__(self, message: str, **values: object) -> None: ...


@dataclass(frozen=True)
class Supervised:
    """How supervised workers ended: finished or, being told to, interrupted."""

    is_finished: bool
    restarts: int


def supervise(
    start: Callable[[int, StopRequests], LocalJob],
    workers: int,
    policy: RestartPolicy,
    tell: Tell,
    on_poll: Callable[[], None],
) -> Supervised:
    """Run groups of workers one after the other until one ends well, beginning with `workers`.

    Raises WorkerError where `policy` gives up, and TrainingError as `LocalJob.wait` does. SIGINT, SIGTERM and
    SIGHUP make the workers save and leave, a second one kills them, at any moment; then nothing is started again.
    """
    stops, failures = StopRequests(), list[Failure]()
    with signals_call(stops.ask):
        while not stops.is_set:
            try:
                is_finished = start(workers, stops).wait(on_poll)
            except WorkerError as error:
                if stops.is_set:
                    raise
                now_s = time.monotonic()
                failures.append(Failure(now_s, workers, error.exit_code == FINAL_STATUS))
                decision = policy.decide(failures, now_s)
                if isinstance(decision, GiveUp):
                    raise error.after(_restarts_tried(decision, policy)) from None
                tell(str(error), rank=error.rank, exit_code=error.exit_code)
                workers = decision.workers
                tell(
                    f"restarting ({decision.number} of {policy.max_restarts}) with {_count(workers, 'worker')} "
                    "from the newest checkpoint",
                    restart=decision.number,
                    workers=workers,
                )
            else:
                return Supervised(is_finished, len(failures))
    raise TrainingError(
        "stopped while the workers were being restarted; the same command resumes from the last checkpoint"
    )


def _restarts_tried(decision: GiveUp, policy: RestartPolicy) -> str:
    """In words for the error; nothing where nothing was tried."""
    if not decision.restarts:
        return ""
    return f"after {_count(decision.restarts, 'restart')} within {policy.window_s / 60:g} minutes"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
