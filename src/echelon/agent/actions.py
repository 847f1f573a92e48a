"""What an agent can do, and what can happen to it: the output and the input of `decide` (decision.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from echelon.agent.generation import Failure, Generation, Heartbeat
from echelon.agent.outcome import RunOutcome
from echelon.monitor.heartbeat import Pulse

# Actions


@dataclass(frozen=True)
class Listen:
    """Open the port of the group's store; answered by `Listening`."""


@dataclass(frozen=True)
class StartWorkers:
    generation: Generation


@dataclass(frozen=True)
class DrainWorkers:
    """Have this host's workers save and leave."""


@dataclass(frozen=True)
class KillWorkers:
    """End this host's workers at once."""

    keeps_survivors: bool = False
    """Let workers that can join another group with their weights leave theirs, and end only the others."""


@dataclass(frozen=True)
class BlameWorker:
    """A worker, here or on another host, was found to hang."""

    rank: int


@dataclass(frozen=True)
class CheckFolder:
    """Look at the lease on the shared run folder, and renew it if it is ours; answered by `FolderChecked`."""

    is_ours: bool


@dataclass(frozen=True)
class ClaimFolder:
    """Take the shared run folder for a new generation; answered by `FolderClaimed` or `RunHasEnded`."""

    number: int
    because: str


@dataclass(frozen=True)
class ReleaseFolder:
    """Give the lease back, so that the next leader need not wait for it to expire."""


@dataclass(frozen=True)
class RecordEvent:
    """Write an event into the run's records, where launchers read it."""

    message: str
    values: Mapping[str, object] = field(default_factory=dict)
    kind: Literal["event", "failure"] = "event"


Action = (
    Listen
    | StartWorkers
    | DrainWorkers
    | KillWorkers
    | BlameWorker
    | CheckFolder
    | ClaimFolder
    | ReleaseFolder
    | RecordEvent
)

# Events


@dataclass(frozen=True)
class Listening:
    port: int


@dataclass(frozen=True)
class FolderChecked:
    problem: str = ""
    """Why the folder cannot be reached."""
    is_taken: bool = False
    """A newer generation has it."""


@dataclass(frozen=True)
class FolderClaimed:
    number: int | None
    """None while another host may hold it."""
    because: str = ""
    problem: str = ""
    """Why the folder cannot be reached."""


@dataclass(frozen=True)
class RunHasEnded:
    """The hosts that had the folder ended the run, and could not tell us."""

    ended: RunOutcome


ActionResult = Listening | FolderChecked | FolderClaimed | RunHasEnded
WorkersEnd = Literal["finished", "interrupted"] | Failure


@dataclass(frozen=True)
class Events:
    """What has happened since the last decision."""

    heartbeats: tuple[tuple[Heartbeat, float], ...] = ()
    """Other hosts' heartbeats in order, each with its time of arrival."""
    absent_since: Mapping[int, float] = field(default_factory=dict)
    """Hosts whose machine answers that no agent is there."""
    lost: frozenset[int] = frozenset()
    """Hosts whose only connection has ended."""
    pulses: Mapping[int, Pulse] = field(default_factory=dict)
    workers_end: WorkersEnd | None = None
    """This host's workers have ended, and how."""
    stop: Literal[0, 1, 2] = 0
    is_leaving: bool = False
    """This machine is about to be taken away."""
    answers: tuple[ActionResult, ...] = ()
