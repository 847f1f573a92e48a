"""How a run on hosts has ended, in the records of its agents: read by launchers, and by agents that missed the end."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from echelon.agent.generation import OutcomeName
from echelon.monitor.records import RecordWriter, read_records
from echelon.runfolder import RunFolder

ALONE: Literal["alone"] = "alone"
"""The outcome of an agent that gave up waiting for the others: the run may continue without it. The other outcomes are
the run's, and all agents agree on them."""


@dataclass(frozen=True)
class RunOutcome:
    """How a launch of the run has ended, as an agent or its launcher sees it."""

    outcome: OutcomeName | Literal["alone"]
    message: str = ""
    launch: str = ""
    """Which launch (`AgentSpec.launch`): the run may have been started again since."""
    is_final: bool = False
    """It has failed, and starting it again would not help."""
    restarts: int = 0
    """How often its workers were started again, as far as this observer knows."""

    @property
    def is_finished(self) -> bool:
        return self.outcome == "finished"


_ENDED = TypeAdapter(RunOutcome)


def write_outcome(records: RecordWriter, ended: RunOutcome, host: str) -> None:
    records.write("outcome", host=host, **asdict(ended))


def last_outcome(run: RunFolder, host: int) -> RunOutcome | None:
    """How the run has ended, if that is the last record of host number `host`'s agent."""
    records = read_records(run.agent_records(host))
    return _parse(records[-1]) if records else None


def read_outcomes(run: RunFolder) -> dict[str, RunOutcome]:
    """How launches of the run have ended, from all agents whose records are in this folder."""
    files = sorted(run.records.glob("agent-*.jsonl"))
    ends = [ended for file in files for ended in map(_parse, read_records(file)) if ended is not None]
    return {ended.launch: ended for ended in ends if ended.outcome != ALONE and ended.launch}


def _parse(record: dict[str, Any]) -> RunOutcome | None:
    with contextlib.suppress(ValueError):
        if record["kind"] == "outcome":
            return _ENDED.validate_python(record)
    return None
