"""A run's state, read from its folder: the one function that `runs`, `status`, `report` and `watch` share."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.monitor.records import read_records, skim_records, training_records
from echelon.runfolder import RunFolder, read_json

FRESH_S = 30.0
"""A run on hosts with their own folders counts as training while its records are no older than this."""


@dataclass(frozen=True)
class RunState:
    """A run's state, as far as this folder shows it."""

    name: str
    """training, finished, stopped early, interrupted, not started; or unknown, if hosts with folders of their own train
    it and no launcher fetches what they write."""
    step: int
    steps: int | None
    as_of: float
    """When its first worker last wrote something, or its recipe was written; seconds since the epoch."""


def read_state(
    run: RunFolder, records: Sequence[dict[str, Any]] | None = None, *, is_over: bool = False
) -> RunState:
    """A run's state; `records` are those of its first worker, if they have been read already. `is_over`: it is
    known to be over, though a launcher about to leave or a host that is cut off may still hold its lock."""
    records = training_records(skim_records(run.worker_records(0)) if records is None else records)
    steps = [record["steps"] for record in records if record["kind"] == "start" and "steps" in record]
    # A start goes back behind the steps that were made after its checkpoint.
    standing = (record for record in reversed(records) if record["kind"] in ("start", "step"))
    return RunState(
        name="training" if run.is_locked() and not is_over else _name(run, records),
        step=next((record.get("step") or 0 for record in standing), 0),
        steps=steps[-1] if steps else None,
        as_of=max((record.get("time") or 0 for record in records), default=_written(run)),
    )


def _name(run: RunFolder, records: Sequence[dict[str, Any]]) -> str:
    last = next((r for r in reversed(records) if r["kind"] in ("start", "end", "failure")), None)
    if last is not None and last["kind"] == "end":
        return str(last.get("outcome", "finished"))
    if _is_trained_elsewhere(run):
        return _name_elsewhere(run)
    return "interrupted" if last is not None else "not started"


def _is_trained_elsewhere(run: RunFolder) -> bool:
    """Whether some of its hosts have run folders of their own, so that the lock of this one may be free."""
    try:
        entries = read_json(run.hosts)["entries"]
        return any(not entry["sees_our_folder"] for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _name_elsewhere(run: RunFolder) -> str:
    """From the agents' records, as far as they have arrived. Each records its start, and how the run ended."""
    last = max(_last_words(run), key=lambda record: float(record.get("time") or 0), default=None)
    if last is not None and last["kind"] == "outcome":
        return "finished" if last.get("outcome") == "finished" else "interrupted"
    newest = max((file.stat().st_mtime for file in run.records.glob("*.jsonl")), default=0.0)
    return "training" if time.time() - newest < FRESH_S else "unknown"


def _last_words(run: RunFolder) -> Iterator[dict[str, Any]]:
    """Each agent's last record of whether the run continues; none of an agent that gave up waiting for others."""
    for file in run.records.glob("agent-*.jsonl"):
        words = [record for record in read_records(file) if record["kind"] in ("start", "outcome")]
        if words and words[-1].get("outcome") != "alone":
            yield words[-1]


def _written(run: RunFolder) -> float:
    try:
        return run.recipe.stat().st_mtime
    except OSError:
        return 0.0
