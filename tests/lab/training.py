"""`echelon train --hosts` on the lab, for tests: a training in a process of its own."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

from echelon.lab.lab import Lab
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder

SETTINGS = (
    "train.steps=60",
    "checkpoint.every=10",
    "checkpoint.keep=10",
    "evaluate.every=30",
    "train.log_every=1",
)
_numbers = itertools.count()


class Training:
    """`echelon train --hosts`, with one worker on each of the lab's hosts."""

    def __init__(
        self, lab: Lab, recipe: Path, folder: Path, *arguments: str, run: RunFolder | None = None
    ) -> None:
        self.run = run or RunFolder(folder / f"run-{next(_numbers)}")
        self._lab, self._recipe, self._arguments = lab, recipe, arguments
        hosts = ",".join(f"{host}:1" for host in lab.hosts)
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        command = [sys.executable, "-m", "echelon", "train", str(recipe), "--run", str(self.run.path)]
        self.process = subprocess.Popen(
            [*command, "--hosts", hosts, "--ssh-config", str(lab.ssh_config), *sets, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def again(self) -> Training:
        """The same command a second time."""
        return Training(self._lab, self._recipe, self.run.path.parent, *self._arguments, run=self.run)

    def steps(self) -> list[tuple[int, float]]:
        records = read_records(self.run.worker_records(0))
        return [(record["step"], record["time"]) for record in records if record["kind"] == "step"]

    def wait_for_step(self, step: int, after: float = 0.0) -> float:
        """The time at which such a step, or a later one, was made after a moment."""
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and self.process.poll() is None:
            times = [at for number, at in self.steps() if number >= step and at > after]
            if times:
                return times[0]
            time.sleep(0.05)
        raise AssertionError(f"step {step} did not come: {self.finish(status=None)}")

    def wait_for_workers(self, count: int, after: float) -> None:
        """Until so many workers have started together after a moment."""
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and self.process.poll() is None:
            records = read_records(self.run.worker_records(0))
            if any(r["kind"] == "start" and r["workers"] == count and r["time"] > after for r in records):
                return
            time.sleep(0.05)
        raise AssertionError(f"{count} workers did not start: {self.finish(status=None)}")

    def finish(self, status: int | None = 0) -> str:
        output, _ = self.process.communicate(timeout=200)
        assert status is None or self.process.returncode == status, output
        return output
