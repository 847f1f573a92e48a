"""What a page shows of one run beside its curves: recipe, samples, confusion, hosts, events, and a report's answers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import OrderedDict
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
    """The answers of `echelon report`, kept until the run's records change.

    A report reads all records of a run into memory, which this process is to keep free; so another one does it.
    """

    def __init__(self, hourly: float | None) -> None:
        self._hourly = hourly
        self._kept: OrderedDict[str, tuple[object, dict[str, Any]]] = OrderedDict()
        self._turn = threading.Lock()
        """One report at a time."""

    def of(self, curves: RunCurves) -> dict[str, Any]:
        """RunError if the report cannot be made."""
        key, version = str(curves.run.path), curves.bytes_read
        with self._turn:
            kept = self._kept.get(key)
            if kept is not None and kept[0] == version:
                return kept[1]
            answers = self._ask(curves.run)
            self._kept[key] = version, answers
            while len(self._kept) > _MOST_REPORTS:
                self._kept.popitem(last=False)
            return answers

    def _ask(self, run: RunFolder) -> dict[str, Any]:
        price = [] if self._hourly is None else ["--price", str(self._hourly)]
        command = [
            sys.executable,
            "-P",
            "-m",
            "echelon",
            "report",
            str(run.path.absolute()),
            "--json",
            *price,
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_REPORT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise RunError(f"the report took longer than {_REPORT_S} s; try `echelon report`") from None
        if done.returncode != 0:
            raise RunError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no report")
        found: dict[str, Any] = json.loads(done.stdout)["answers"]
        return found
