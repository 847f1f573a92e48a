"""Sends what a host writes to the launcher that watches the run."""

from __future__ import annotations

import base64
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from echelon.agent.outcome import last_outcome
from echelon.agent.service import find_agent, workers_of
from echelon.runfolder import RunFolder, to_json

FOLLOWED = re.compile(r"(records|logs)/(worker|agent)-\d{1,6}\.(jsonl|log)")
"""The files of a run folder that are sent: not those that a launcher wrote in an earlier run on that host alone."""
_POLL_S = 0.2
_BEAT_S = 2.0
_MOST_BYTES = 2**18
"""Sent of one file at a time, so that no file keeps the others waiting."""


def follow(run: RunFolder, host: int, offsets: dict[str, int] | None, out: TextIO) -> None:
    """Print what is added to the run's records and logs after `offsets`, until the agent has ended.

    Without offsets, for a launcher that sees the run folder itself, print only whether the agent lives. Lines are
    `{"file": NAME, "at": OFFSET, "data": BASE64}`, every few seconds `{"alive": true, "trains": WHETHER}`, and last
    `{"alive": false}` with the run's outcome, if the agent wrote one.
    """
    said = 0.0
    while True:
        agent = find_agent(run, host)
        has_more = offsets is not None and _print_news(run, offsets, out)
        if agent is None and not has_more:
            break
        if time.monotonic() - said > _BEAT_S:
            said = time.monotonic()
            _print(out, {"alive": True, "trains": agent is not None and bool(workers_of(agent))})
        if not has_more:
            time.sleep(_POLL_S)
    ended = last_outcome(run, host)
    _print(out, {"alive": False, **(asdict(ended) if ended else {})})


def _print_news(run: RunFolder, offsets: dict[str, int], out: TextIO) -> bool:
    has_more = False
    for path in (*sorted(run.records.glob("*.jsonl")), *sorted(run.logs.glob("*.log"))):
        name = str(path.relative_to(run.path))
        if not FOLLOWED.fullmatch(name) or not path.is_file():
            continue
        start = offsets.get(name, 0)
        start = start if start <= path.stat().st_size else 0  # the folder was emptied meanwhile
        data = _read(path, start)
        if data:
            offsets[name] = start + len(data)
            has_more = True
            _print(out, {"file": name, "at": start, "data": base64.b64encode(data).decode()})
    return has_more


def _read(path: Path, start: int) -> bytes:
    """Return the next whole lines, or a part of one that is very long."""
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read(_MOST_BYTES)
    end = data.rfind(b"\n") + 1
    return data[:end] if end or len(data) < _MOST_BYTES else data


def _print(out: TextIO, value: dict[str, object]) -> None:
    out.write(to_json(value) + "\n")
    out.flush()
