"""Histories of runs as they might have been: restarts, gaps, clocks that jump, records that lack something."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from echelon.monitor.meter import PHASES
from echelon.recipe.toml import dump_recipe
from echelon.runfolder import RunFolder
from tests.sample_recipe import sample_recipe

Record = dict[str, Any]
SCORE = {"split": "test", "bleu": 31.5, "chrf": 55.0, "checkpoint": "best", "signature": "nrefs:1"}


def rounded(least: float, most: float) -> st.SearchStrategy[float]:
    """Numbers as records have them: with six digits after the point."""
    return st.floats(least, most).map(lambda value: round(value, 6))


_SECONDS = rounded(0.0, 90.0)
_LOSSES = st.one_of(st.none(), rounded(0.0, 20.0), st.just(0.0))


@dataclass(frozen=True)
class MadeHistory:
    """Each worker's records."""

    workers: tuple[tuple[Record, ...], ...]
    has_honest_clocks: bool

    def write(self, folder: Path) -> RunFolder:
        run = RunFolder(folder)
        run.create()
        run.recipe.write_text(dump_recipe(sample_recipe("name=made")))
        for rank, records in enumerate(self.workers):
            append(run, rank, records)
        return run


def append(run: RunFolder, rank: int, records: Sequence[Record]) -> None:
    with open(run.worker_records(rank), "a") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)


@st.composite
def phases(draw: st.DrawFn) -> Record:
    """A step's phases: all, some or none of them."""
    named = draw(st.lists(st.sampled_from(PHASES), unique=True, max_size=len(PHASES)))
    return {phase: draw(rounded(0.0, 8.0)) for phase in named}


@st.composite
def sessions(draw: st.DrawFn, at: float, step: int, steps: int, *, is_honest: bool) -> list[Record]:
    """One start and what followed, from a step on; `at` is the time on a clock that may be set meanwhile."""
    clock, records = at, list[Record]()

    def write(kind: str, passed: float, **values: Any) -> None:
        nonlocal clock
        clock += passed if is_honest else draw(st.one_of(st.just(passed), st.floats(-4000.0, 4000.0)))
        records.append({"kind": kind, "time": clock, **values})

    write(
        "start",
        0.0,
        step=step,
        steps=steps,
        workers=2,
        setup_seconds=draw(_SECONDS),
        host="a",
        parameters=1000,
    )
    for number in range(step + 1, step + 1 + draw(st.integers(0, 12))):
        spent = draw(phases())
        seconds = sum(spent.values()) or draw(_SECONDS)
        values: Record = {"step": number, "seconds": seconds, "loss": draw(_LOSSES)}
        values |= {"phases": spent} if draw(st.booleans()) or is_honest else {}
        values |= {"targets": draw(st.integers(1, 9999))} if draw(st.booleans()) else {}
        write("step", seconds, **values)
        if draw(st.booleans()):
            write("valid", 0.0, step=number, loss=draw(rounded(0.0, 20.0)), bleu=draw(rounded(0.0, 100.0)))
        if draw(st.booleans()):
            write("host", 0.0, host="a", seconds=2.0, processors=0.5)
        if draw(st.booleans()):
            write("checkpoint", 0.0, step=number, name=f"step-{number:08d}", bytes=12_000, seconds=0.1)
    ending = draw(st.sampled_from(["killed", "finished", "interrupted", "stopped early"]))
    if ending != "killed":
        spent = draw(phases())
        write("score", 0.0, step=number_of(records), **SCORE)
        write("end", sum(spent.values()), step=number_of(records), outcome=ending, phases=spent)
    return records


def number_of(records: Sequence[Record]) -> int:
    """The step at which records stand; 0 if none of them tells."""
    return int(next((r["step"] for r in reversed(records) if r["kind"] in ("start", "step")), 0))


@st.composite
def made_histories(draw: st.DrawFn) -> MadeHistory:
    """Runs of one to four starts, each from the last step or from before it, with pauses between."""
    is_honest, first = draw(st.booleans()), draw(st.sampled_from([0, 0, 999_990]))
    workers = []
    for _ in range(draw(st.integers(1, 2))):
        records, at, step = list[Record](), 1.7e9, first
        for _ in range(draw(st.integers(0, 4))):
            records += draw(sessions(at, step, first + 60, is_honest=is_honest))
            at = records[-1]["time"] + draw(st.floats(0.0, 1e5))
            step = max(first, number_of(records) - draw(st.integers(0, 3)))
        missing = draw(
            st.sets(st.sampled_from(["start", "valid", "host", "end", "checkpoint", "score"]), max_size=2)
        )
        kept = [record for record in records if is_honest or record["kind"] not in missing]
        workers.append(tuple(kept))
    return MadeHistory(tuple(workers), is_honest)
