"""Run folders and worker programs for tests of launchers; no process may be left behind."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from echelon.launch import local
from echelon.runfolder import RunFolder

PREAMBLE = '''
import os, signal, subprocess, sys, time
from pathlib import Path
run, rank = Path(sys.argv[1]), int(os.environ["RANK"])
def save_and_leave(number, frame):
    print("saved", flush=True)
    sys.exit(75)
def started():
    (run / f"pid-{rank}").write_text(str(os.getpid()))
    while not all((run / f"pid-{other}").exists() for other in range(int(os.environ["WORLD_SIZE"]))):
        time.sleep(0.01)
def fail_after(first):
    """Fail as real workers do, with a record; all but the first only once that one has."""
    from echelon.monitor.records import RecordWriter, read_records
    from echelon.runfolder import RunFolder
    while rank != first and not read_records(RunFolder(run).worker_records(first)): time.sleep(0.01)
    time.sleep(0.0 if rank == first else 0.05)
    RecordWriter(RunFolder(run).worker_records(rank)).write("failure", message="failed")
    sys.exit(1)
'''


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


Program = Callable[[str], list[str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a program for workers out of a few lines of Python."""

    def write(body: str) -> list[str]:
        script = tmp_path / "worker.py"
        script.write_text(PREAMBLE + textwrap.dedent(body))
        return [sys.executable, str(script)]

    return write


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children(recursive=True))  # other tests may have left Python's own helpers
    yield
    after = set(psutil.Process().children(recursive=True)) - before
    left = [child for child in after if child.status() != "zombie"]
    for process in left:
        process.kill()
    assert left == []


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_FAILURE_GRACE_S", 0.2)
