"""What a page shows of one run beside its curves: recipe, samples, confusion, hosts, events, and a report's answers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from echelon.dashboard.run_curves import RunCurves
from echelon.errors import EchelonError, RunError
from echelon.explain.class_accuracy import read_class_scores
from echelon.explain.host_samples import host_table
from echelon.recipe.loading import load_recipe
from echelon.recipe.toml import flat_settings
from echelon.runfolder import RunFolder

_REPORT_S = 300
_MOST_REPORTS = 64


def describe_run(curves: RunCurves) -> dict[str, Any]:
    """Everything but curves and answers."""
    heading, rows = host_table(list(curves.hosts.values()))
    confused = read_class_scores(curves.run)
    events = sorted((*curves.events, *curves.checkpoints), key=lambda event: float(event["seconds"]))
    return {
        "recipe": _settings(curves.run),
        "samples": curves.samples,
        "events": events,
        "phases": curves.phases,
        "steps": curves.progress.step,
        "hosts": {"heading": heading, "rows": [[name, *cells] for name, cells in rows]},
        "confusion": None
        if confused is None or confused.confusion is None
        else {
            "names": [each.name for each in confused.classes],
            "counts": confused.confusion,
            "source": confused.source,
        },
    }


def _settings(run: RunFolder) -> dict[str, str]:
    try:
        return {
            key: value for key, value in flat_settings(load_recipe(run.recipe)).items() if value != "None"
        }
    except EchelonError:
        return {}


class Answers:
    """What `echelon report` and `echelon compare` say, kept until the runs' files change.

    Both read all records of a run into memory, and comparing takes seconds of a processor. This process is to keep free
    of that; so another one does it.
    """

    def __init__(self, hourly: float | None) -> None:
        self._price = [] if hourly is None else ["--price", str(hourly)]
        self._kept: OrderedDict[tuple[str, ...], tuple[object, dict[str, Any]]] = OrderedDict()
        self._turn = threading.Lock()
        """One at a time."""

    def of(self, curves: RunCurves) -> dict[str, Any]:
        """The answers of a report; RunError if it cannot be made."""
        return self._find("answers", ["report"], [curves.run], curves.bytes_read)

    def verdict(self, runs: Sequence[RunFolder]) -> dict[str, Any]:
        """Whether runs differ on their test set, as far as their outputs were kept; RunError if that cannot be told."""
        version = tuple(modified_ns(run.score_file("test")) for run in runs)
        return self._find("verdict", ["compare", "--no-score"], runs, version)

    def _find(
        self, part: str, verb: Sequence[str], runs: Sequence[RunFolder], version: object
    ) -> dict[str, Any]:
        paths = [str(run.path.absolute()) for run in runs]
        with self._turn:
            kept = self._kept.get((part, *paths))
            if kept is not None and kept[0] == version:
                return kept[1]
            found: dict[str, Any] = _run_echelon([*verb, "--json", *self._price, "--", *paths])[part]
            self._kept[(part, *paths)] = version, found
            while len(self._kept) > _MOST_REPORTS:
                self._kept.popitem(last=False)
            return found


def modified_ns(file: Path) -> int:
    """When a file was last written; 0 if it is not there."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _run_echelon(arguments: Sequence[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "echelon", *arguments],
            capture_output=True,
            text=True,
            timeout=_REPORT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"this took longer than {_REPORT_S} s; try `echelon {arguments[0]}` on the command line"
        ) from None
    if done.returncode != 0:
        raise RunError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
