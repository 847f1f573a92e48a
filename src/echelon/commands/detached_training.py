"""`train --detach`: the same command in the background."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.errors import RunError
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder, open_no_link

_POLL_S = 0.2
_START_S = 600.0


def detach(command: Sequence[str], run: RunFolder, console: Console) -> dict[str, Any]:
    """Run a command in the background, and return when the run has begun to train; RunError if it ends before."""
    run.create()
    begun = len(_starts(run))
    log = run.launcher_log
    with open(log, "ab", opener=open_no_link) as out:
        position = out.tell()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "echelon", *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The caller may outlive it.
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    deadline = time.monotonic() + _START_S
    while process.poll() is None and len(_starts(run)) <= begun and time.monotonic() < deadline:
        position = _show_log(log, position, console)
        time.sleep(_POLL_S)
    _show_log(log, position, console)
    if process.poll() not in (None, 0):
        raise RunError(f"{run.path}: the run did not begin; see above, or {log}")
    return {"run": str(run.path), "process": process.pid, "log": str(log)}


def _starts(run: RunFolder) -> list[dict[str, Any]]:
    return [record for record in read_records(run.worker_records(0)) if record["kind"] == "start"]


def _show_log(log: Path, position: int, console: Console) -> int:
    with open(log, "rb") as file:
        file.seek(position)
        text = file.read().decode(errors="replace")
        console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
        return file.tell()
