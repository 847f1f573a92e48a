"""Runs' thinned curves on disk, so that a dashboard that is started again need not read gigabytes of records again.

A file for each run in the user's own cache; numbers as safetensors, everything else as JSON. It holds how far each file
of records was read. Reading goes on from there if they are the same files and have only grown.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections import deque
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from echelon.dashboard.run_curves import RunCurves, RunProgress
from echelon.dashboard.thinning import ThinnedCurve
from echelon.explain.accounting import Ledger
from echelon.monitor.records import RecordReader
from echelon.runfolder import RunFolder, parse_json, to_json, write_atomically

_VERSION = 2
_PARTS = ("width", "low", "high", "mean", "waiting")
_DEQUES = ("states", "events", "checkpoints")
_PLAIN = ("samples", "hosts", "phases")


def cache_folder() -> Path:
    """$ECHELON_CACHE/dashboard, else ~/.cache/echelon/dashboard."""
    given = os.environ.get("ECHELON_CACHE")
    return (Path(given) if given else Path.home() / ".cache" / "echelon") / "dashboard"


def save_curves(folder: Path, curves: RunCurves) -> None:
    """Keep a run's curves; a disk that does not take them costs only time, later."""
    tensors = {
        f"{number}/{part}": array
        for number, curve in enumerate(curves.curves.values())
        for part, array in curve.to_arrays().items()
    }
    facts = {
        "version": _VERSION,
        "names": list(curves.curves),
        "files": {
            name: [reader.position, _inode(curves.run, name)] for name, reader in curves.readers.items()
        },
        "progress": dataclasses.asdict(curves.progress),
        "is_over": curves.chosen.is_over,
        "repeated": curves.chosen.repeated,
        **{name: list(getattr(curves, name)) for name in _DEQUES},
        **{name: getattr(curves, name) for name in _PLAIN},
    }
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(_file(folder, curves.run), save(tensors, {"facts": to_json(facts)}))


def load_curves(folder: Path, run: RunFolder) -> RunCurves:
    """A run's curves as far as they were kept; new ones, with nothing read, if they are of other records or damaged."""
    try:
        with safe_open(_file(folder, run), "numpy") as kept:
            facts = parse_json(kept.metadata()["facts"])
            if facts["version"] == _VERSION and _has_only_grown(run, facts["files"]):
                return _restore(run, facts, kept)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        pass
    return RunCurves(run)


def _restore(run: RunFolder, facts: dict[str, Any], kept: Any) -> RunCurves:
    progress = facts["progress"] | {"ledger": Ledger(**facts["progress"]["ledger"])}
    curves = RunCurves(run, progress=RunProgress(**progress))
    for number, name in enumerate(facts["names"]):
        arrays = {part: kept.get_tensor(f"{number}/{part}") for part in _PARTS}
        curves.curves[name] = ThinnedCurve.from_arrays(arrays)
    for name in _DEQUES:
        found: deque[dict[str, Any]] = getattr(curves, name)
        found.extend(facts[name])
    for name in _PLAIN:
        getattr(curves, name).update(facts[name])
    for name, (position, _) in facts["files"].items():
        reader = curves.readers[name] = RecordReader(run.records / name)
        reader.position = position
    curves.chosen.is_over, curves.chosen.repeated = facts["is_over"], facts["repeated"]
    return curves


def _has_only_grown(run: RunFolder, files: dict[str, Any]) -> bool:
    for name, (position, inode) in files.items():
        path = run.records / name
        is_plain = Path(name).name == name
        if not is_plain or (position and (path.stat().st_size < position or _inode(run, name) != inode)):
            return False
    return bool(files)


def _inode(run: RunFolder, name: str) -> int:
    try:
        return (run.records / name).stat().st_ino
    except FileNotFoundError:
        return 0


def _file(folder: Path, run: RunFolder) -> Path:
    digest = hashlib.sha256(json.dumps(str(run.path.absolute())).encode()).hexdigest()
    return folder / f"{digest[:32]}.safetensors"
