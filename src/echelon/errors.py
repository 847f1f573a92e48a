"""Every error Echelon raises on purpose.

EchelonError              exit status 1: the work failed
├── UserError             exit status 2: the user can put it right, and the message says how
│   ├── RecipeError       the recipe is wrong; carries every problem at once
│   ├── DataError         a corpus cannot be used: missing, empty, undecodable, misaligned
│   ├── RunError          a run folder is missing, locked, or belongs to another recipe
│   └── HostsError        hosts are given wrongly; carries every problem at once
├── CheckpointError       no complete checkpoint, or a damaged one
├── LostGroupError        another worker is lost, so that a collective cannot end
├── WorkerError           a worker failed; carries host, rank, exit code, its own message, log path and last lines
├── RemoteError           a host cannot be reached or used; carries host, reason and what to do
├── TrainingError         training cannot continue, e.g. the loss is not finite
├── PackageError          an exported model is damaged, or one just written does not do what PyTorch does
├── LabError              a host of the lab could not be made, changed or removed
├── StoreError            data or a checkpoint at an address cannot be put there or fetched
├── CloudError            a provider refused, or something rented could not be made or removed
├── RefusedError          the group of processes does not begin, not with this one, or failed; carries its exit status
└── StoppedError          exit status 75: told to stop before training began, so that there was nothing to save
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Reason = Literal[
    "unknown host",
    "refused",
    "unreachable",
    "timed out",
    "host key",
    "permission",
    "command not found",
    "connection lost",
    "ssh",
    "failed",
]
"""Why a host cannot be used: `ssh` is the client or its configuration, `failed` something that ran there."""

INTERRUPTED_STATUS = 75
"""Exit status of a worker that saved and left because it was told to."""
_LONGEST_MESSAGE = 500
"""Characters of a worker's own message that are shown; its log has the rest."""
FINAL_STATUS = 2
"""Exit status of a worker whose failure no restart can help: the user's mistake, or training that cannot continue."""


class EchelonError(Exception):
    """The work failed; `exit_status` is what the process returns."""

    exit_status = 1


class UserError(EchelonError):
    """A mistake that the user can correct. The message says what, where, and what to do."""

    exit_status = 2


class DataError(UserError):
    """A corpus cannot be used. The message names the file and, if possible, the line."""


class RunError(UserError):
    """A run folder is missing, in use, or belongs to another recipe."""


class HostsError(UserError):
    """The hosts are specified wrongly. The message names the file, if there is one, and the lines."""


class CheckpointError(EchelonError):
    """No complete checkpoint is there, or the one asked for is damaged."""


class TrainingError(EchelonError):
    """Training cannot continue."""


class LostGroupError(EchelonError):
    """A collective cannot end, because another worker is lost."""


class RemoteError(EchelonError):
    """A host cannot be reached or used; `reason` tells the kinds apart, `remedy` says what to do."""

    def __init__(self, host: str, reason: Reason, message: str, remedy: str = "") -> None:
        self.host = host
        self.reason = reason
        self.message = message
        self.remedy = remedy
        super().__init__(f"{host}: {message}" + (f"; {remedy}" if remedy else ""))


class PackageError(EchelonError):
    """An exported model is damaged or of another version, or does not compute what the model it came from does."""


class LabError(EchelonError):
    """A host of the lab could not be made, changed or removed. The message has the command and what it said."""


class StoreError(EchelonError):
    """Data or a checkpoint at an address cannot be put there or fetched. The message names the address."""


class CloudError(EchelonError):
    """A provider refused, or something rented could not be made or removed. The message says what to do.

    `code` is the provider's own word for it, e.g. `VcpuLimitExceeded`; empty if it has none. `may_be_done`: the answer
    was lost, so that what was asked for may have been done.
    """

    def __init__(self, message: str, code: str = "", may_be_done: bool = False) -> None:
        self.code = code
        self.may_be_done = may_be_done
        super().__init__(message)


class RefusedError(EchelonError):
    """Process 0 of those that were to train together does not begin, not with this one, or says that they failed."""

    def __init__(self, message: str, exit_status: int) -> None:
        self.exit_status = exit_status
        super().__init__(message)


class StoppedError(EchelonError):
    """Told to stop before training began: nothing was lost, and the same command begins again."""

    exit_status = 75


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a recipe: where it is and what to do about it."""

    key: str
    """Dotted path of the key, e.g. `train.batch_tokens`; empty for the file as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class RecipeError(UserError):
    """A recipe is wrong. All its problems are reported together."""

    def __init__(self, where: str, problems: Sequence[Problem]) -> None:
        self.where = where
        self.problems = list(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        super().__init__(f"{where} has {count}:\n{lines}")


class WorkerError(EchelonError):
    """A worker process failed."""

    def __init__(
        self,
        *,
        host: str,
        rank: int,
        exit_code: int,
        log: Path,
        last_lines: Sequence[str],
        cause: str | None = None,
        message: str = "",
    ) -> None:
        self.rank = rank
        self.exit_code = exit_code
        self.log = log
        self.last_lines = list(last_lines)
        self.cause = cause or (f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}")
        self.message = message
        # In the first line, as that is all that a list of events shows.
        own = f": {message.splitlines()[0][:_LONGEST_MESSAGE]}" if message else ""
        tail = "".join(f"\n  {line}" for line in last_lines)
        self.summary = f"worker {rank} on {host} failed ({self.cause})"
        self.details = f"{own}; its log is {log}{tail}"
        super().__init__(self.summary + self.details)
