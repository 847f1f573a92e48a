"""A trial of a search as a process of its own: `echelon train`, to one rung."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from echelon.commands.stop import ask_to_stop
from echelon.commands.training import best_valid
from echelon.launch.cores import affinity
from echelon.monitor.records import is_number, read_records, standing_records
from echelon.monitor.run_state import read_state
from echelon.recipe.workers import WorkerRange
from echelon.runfolder import RunFolder, open_no_link
from echelon.search.search_loop import TrialOutcome
from echelon.search.trial_start import command_of
from echelon.search.trials import RungResult, Trial
from echelon.search.varied_keys import as_settings

_SECOND_STOP_S = 1.2
"""After the first: an earlier one would be taken for the same."""
_OVER = ("finished", "stopped early")


@dataclass(frozen=True)
class TrialTrainer:
    """What all trials of a search have in common."""

    recipe: Path
    overrides: Sequence[str]
    metric: str
    workers: WorkerRange | None
    parallel: int

    def begin(self, run: RunFolder, trial: Trial, rung: int, place: int) -> RunningTrial | OrphanTrial:
        """Train to a rung, or wait for a training that an earlier search has left."""
        if run.is_locked():
            return OrphanTrial(run, trial, rung, self.metric)
        run.create()
        cores = share_of_cores(affinity(), self.parallel, place)
        output = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the trial trains
        with open(run.launcher_log, "ab", opener=open_no_link) as log:
            process = subprocess.Popen(
                command_of(os.getpid(), cores, self.words(run, trial, rung)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches a trial through `stop`, once
            )
        return RunningTrial(run, trial, rung, self.metric, process, output)

    def words(self, run: RunFolder, trial: Trial, rung: int) -> list[str]:
        """The ordinary command, which anybody could give, without `echelon`."""
        is_last = rung == len(trial.rungs) - 1
        settings = [
            *self.overrides,
            *as_settings(trial.values),
            f"evaluate.every={trial.every}",
            "checkpoint.mirror=",  # of all trials, they would overwrite each other's
            f"train.stop_at={'' if is_last else trial.rungs[rung]}",
        ]
        workers = [] if self.workers is None else ["--workers", str(self.workers)]
        words = [word for setting in settings for word in ("--set", setting)]
        return ["train", str(self.recipe), "--run", str(run.path), *workers, *words, "--json"]


@dataclass
class RunningTrial:
    """A trial that this search has begun."""

    run: RunFolder
    trial: Trial
    rung: int
    metric: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    _first_stop: float | None = None

    def poll(self) -> TrialOutcome | None:
        """What became of it; None while it, or a worker that has outlived it, is there."""
        if self.process.poll() is None or self.run.is_locked():
            return None
        said = self._read_output()
        if self.process.returncode < 0:
            number = -self.process.returncode
            return arrival(self.run, self.trial, self.rung, self.metric) or TrialOutcome(
                "killed", message=f"was killed (signal {number})"
            )
        if "error" in said:
            return TrialOutcome("failed", message=str(said["error"]))
        if not said.get("finished"):
            return TrialOutcome("stopped")
        found = arrival(self.run, self.trial, self.rung, self.metric)
        return found or TrialOutcome("failed", message=f"has no validation {self.metric} that is a number")

    def stop(self) -> None:
        """Have it save and leave; a second time, end it at once."""
        if self._first_stop is None:
            self._first_stop = time.monotonic()
        else:
            time.sleep(max(0.0, self._first_stop + _SECOND_STOP_S - time.monotonic()))
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def _read_output(self) -> dict[str, Any]:
        """The document on its stdout; nothing if it was killed."""
        with self.output:
            self.output.seek(0)
            text = self.output.read()
        try:
            said = json.loads(text)
        except ValueError:
            return {} if self.process.returncode < 0 else {"error": f"see {self.run.launcher_log}"}
        return said if isinstance(said, dict) else {}


@dataclass
class OrphanTrial:
    """A trial that this search has not begun: an earlier one did, and was killed, or somebody resumed it by hand."""

    run: RunFolder
    trial: Trial
    rung: int
    metric: str
    _is_asked: bool = False

    def poll(self) -> TrialOutcome | None:
        if self.run.is_locked():
            return None
        found = arrival(self.run, self.trial, self.rung, self.metric)
        return found or TrialOutcome("killed", message="had lost its search")

    def stop(self) -> None:
        """As `echelon stop` does; a second time, with --now."""
        ask_to_stop(self.run, now=self._is_asked)
        self._is_asked = True


def arrival(run: RunFolder, trial: Trial, rung: int, metric: str) -> TrialOutcome | None:
    """What a run has reached at a rung, from its records; None if it is not there yet."""
    records = read_records(run.worker_records(0))
    is_over = read_state(run, records).name in _OVER
    scored = standing_records(records, lambda each: each["kind"] == "valid" and is_number(each.get(metric)))
    is_there = any(record.get("step") == trial.rungs[rung] for record in scored)
    is_last = rung == len(trial.rungs) - 1
    best = best_valid(run, metric)
    if best is None or not (is_over or (is_there and not is_last)):
        return None
    step = read_state(run, records).step if is_over else trial.rungs[rung]
    return TrialOutcome("arrived", RungResult(step, float(best[metric])), is_over)


def share_of_cores(cores: Collection[int], parallel: int, place: int) -> set[int]:
    """The cores of one of the trials that train side by side; all of them if there are too few to share."""
    own = sorted(cores)[place::parallel]
    return set(own if own and len(cores) >= parallel else cores)
