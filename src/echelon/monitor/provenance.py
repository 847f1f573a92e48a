"""Where a run comes from: command, versions, git commit and diff, host."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import echelon
from echelon.addresses import redact_text
from echelon.runfolder import RunFolder, read_json

_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors")
_MAX_DIFF_CHARACTERS = 200_000


def collect_provenance(hosts: list[str] | None = None) -> dict[str, Any]:
    """Collect what is needed to reproduce this start of a run."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": redact_text(shlex.join(sys.argv)),
        "folder": str(Path.cwd()),
        "hosts": hosts or [socket.gethostname()],
        "processors": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "versions": {"echelon": echelon.__version__} | {name: _version(name) for name in _PACKAGES},
        "git": git_state(Path(__file__)),
    }


def launch_times(run: RunFolder) -> list[float]:
    """When a run was launched, in seconds since the epoch; none if its provenance is missing or damaged."""
    try:
        return [datetime.fromisoformat(launch["time"]).timestamp() for launch in read_json(run.provenance)]
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state(file: Path) -> dict[str, str] | None:
    """Commit and uncommitted changes of the checkout that `file` belongs to; None if git does not know it."""
    folder = file.parent
    commit = _git(folder, "rev-parse", "HEAD")
    tracked = _git(folder, "ls-files", "--error-unmatch", str(file))
    if not commit or not tracked:
        return None
    diff = _git(folder, "diff", "HEAD") or ""
    return {"commit": commit.strip(), "diff": diff[:_MAX_DIFF_CHARACTERS]}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # a diff shows files as they are, whatever their encoding
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout if result.returncode == 0 else None
