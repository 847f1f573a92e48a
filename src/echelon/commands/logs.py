"""The output of workers and agents, line by line as it arrives, each labelled with its origin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from echelon.monitor.records import RecordReader
from echelon.runfolder import RunFolder, open_regular

_NAME = re.compile(r"(worker|agent)-(\d+)\.log")
_MOST_BYTES = 2**20
"""Bytes read from a log per call; the next call continues there."""


class LogTails:
    """Follows all logs of a run."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._positions = {path: path.stat().st_size for path in run.logs.glob("*.log")}
        self._records: dict[Path, RecordReader] = {}
        self._hosts: dict[Path, str] = {}

    def read(self) -> Iterator[str]:
        """The lines that were completed since the last call, e.g. `host2 worker 3 | out of memory`."""
        for path in sorted(self._run.logs.glob("*.log")):
            match = _NAME.fullmatch(path.name)
            if match is None or not path.is_file():
                continue
            with open(path, "rb", opener=open_regular) as file:
                file.seek(self._positions.get(path, 0))
                data = file.read(_MOST_BYTES)
            whole = data if len(data) == _MOST_BYTES else data[: data.rfind(b"\n") + 1]
            self._positions[path] = self._positions.get(path, 0) + len(whole)
            prefix = self._owner(match[1], int(match[2])) if whole else ""
            for line in whole.decode(errors="replace").splitlines():
                yield f"{prefix} | {line}"

    def _owner(self, kind: str, number: int) -> str:
        file = self._run.worker_records(number) if kind == "worker" else self._run.agent_records(number)
        for record in self._records.setdefault(file, RecordReader(file)).read():
            if isinstance(record.get("host"), str):
                self._hosts[file] = record["host"]
        return f"{self._hosts.get(file, '')} {kind} {number}".strip()
