"""Training on the hosts of a lab, for tests: `echelon train --hosts`, and what is left of it."""

from __future__ import annotations

import itertools
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from echelon.lab.lab import Lab
from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from tests.integration.runs import train_words

SETTINGS = (
    "train.steps=100",  # a host that is struck after step 15 is struck before the end, though steps are told late
    "checkpoint.every=10",
    "checkpoint.keep=10",
    "evaluate.every=50",
    "train.log_every=1",
)
_PATIENCE_S = 150
_numbers = itertools.count()


@contextmanager
def settings_for(lab: Lab) -> Iterator[None]:
    """Prepared data lie where all hosts see them, and hosts with half a CPU have one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHELON_CACHE", str(lab.shared / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


class Training:
    """`echelon train --hosts` in a process of its own."""

    def __init__(
        self,
        lab: Lab,
        recipe: Path,
        folder: Path,
        *arguments: str,
        hosts: Sequence[str] = (),
        run: RunFolder | None = None,
    ) -> None:
        self._lab, self._recipe, self._arguments, self._hosts = lab, recipe, arguments, hosts
        self.run = run or RunFolder(folder / f"run-{next(_numbers)}")
        names = ",".join(f"{host}:1" for host in hosts or lab.hosts)
        where = ["--hosts", names, "--ssh-config", str(lab.ssh_config)]
        self.process = subprocess.Popen(
            [*train_words(recipe, self.run, *SETTINGS), *where, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def again(self) -> Training:
        """The same command a second time."""
        folder = self.run.path.parent
        return Training(self._lab, self._recipe, folder, *self._arguments, hosts=self._hosts, run=self.run)

    def steps(self) -> list[tuple[int, float]]:
        records = read_records(self.run.worker_records(0))
        return [(record["step"], record["time"]) for record in records if record["kind"] == "step"]

    def wait_for_step(self, step: int, after: float = 0.0) -> float:
        """The time at which such a step, or a later one, was made after a moment; waits while steps are made."""
        seen, deadline = 0, time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            steps = self.steps()
            times = [at for number, at in steps if number >= step and at > after]
            if times:
                return times[0]
            if len(steps) > seen:
                seen, deadline = len(steps), time.monotonic() + _PATIENCE_S
            time.sleep(0.05)
        raise AssertionError(f"step {step} did not come: {self._leave()}")

    def wait_for_workers(self, count: int, after: float) -> None:
        """Until so many workers have started together after a moment."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            records = read_records(self.run.worker_records(0))
            if any(r["kind"] == "start" and r["workers"] == count and r["time"] > after for r in records):
                return
            time.sleep(0.05)
        raise AssertionError(f"{count} workers did not start: {self._leave()}")

    def stop(self) -> None:
        """Have it save and leave."""
        if self.process.stdout and not self.process.stdout.closed:
            self._leave()

    def _leave(self) -> str:
        """End it, as Ctrl-C does; what it has printed."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.finish(status=None)

    def finish(self, status: int | None = 0) -> str:
        output, _ = self.process.communicate(timeout=200)
        assert status is None or self.process.returncode == status, output
        return output


def undo_faults(lab: Lab) -> None:
    """Leave all hosts running and connected."""
    for host in lab.status().hosts:
        if not host.running:
            lab.boot(host.name)
        elif not host.connected:
            lab.heal(host.name)
        if host.frozen:
            lab.thaw(host.name)


def programs_left(lab: Lab, host: str) -> list[str]:
    """The agents and workers that are alive on a host."""
    lines = lab.run(host, ["ps", "-eo", "args"]).stdout.splitlines()
    return [f"{host}: {line}" for line in lines if "echelon.agent" in line or "echelon.train.worker" in line]
