"""What tests of whole runs share: the toy recipe, a run under way, its steps and workers, comparing ends."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from echelon.monitor.records import read_records
from echelon.runfolder import RunFolder
from echelon.train.checkpoint import Checkpoint, choose_checkpoint, list_checkpoints
from tests.conftest import RECIPE, write_toy_corpus
from tests.integration.damage import distance

TrainToy = Callable[..., RunFolder]
Undisturbed = Callable[..., RunFolder]
Echelon = Callable[..., subprocess.CompletedProcess[str]]

SETTINGS = ("train.steps=40", "evaluate.every=15", "checkpoint.every=10", "checkpoint.keep=10")
ENDLESS = "train.steps=100000"
_LENGTH = 120


def write_toy_recipe(folder: Path, text: str = RECIPE) -> Path:
    """Write the toy recipe into a folder, with its corpus beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines, seed in (("train", 600, 1), ("valid", 20, 2), ("test", 20, 3)):
        write_toy_corpus(folder, name, lines, seed)
    (folder / "recipe.toml").write_text(text)
    return folder / "recipe.toml"


def train_undisturbed(folder: Path) -> Undisturbed:
    """What trains the toy recipe with some settings, and remembers the run: to be read by tests, and never changed."""
    recipe = write_toy_recipe(folder / "toy")
    environment = {**os.environ, "ECHELON_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}

    @functools.cache
    def train(*settings: str, workers: int) -> RunFolder:
        run = RunFolder(folder / f"run-{train.cache_info().misses}")
        command = [*train_words(recipe, run, *settings), "--workers", str(workers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return run

    return train


def length_beyond(step: int) -> str:
    """A setting of `train.steps` that a run at this step has yet to reach.

    Nearly always the same one, so that the undisturbed run to compare with is trained only once.
    """
    return f"train.steps={_LENGTH * (step // _LENGTH + 1)}"


def assert_same_end(run: RunFolder, other: RunFolder) -> None:
    """Weights, optimiser and state of the last checkpoints are equal, every bit."""
    assert_same_checkpoint(*(choose_checkpoint(r.checkpoints, "last") for r in (run, other)))


def assert_same_checkpoint(one: Checkpoint, two: Checkpoint) -> None:
    for load in ("load_model", "load_optimiser"):
        tensors, others = getattr(one, load)(), getattr(two, load)()
        assert tensors.keys() == others.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, others[name]), f"{load} {name}"
    assert one.load_state() == two.load_state()


def assert_close_end(run: RunFolder, other: RunFolder) -> None:
    """The weights are equal to rounding, as when the number of workers has changed: nearer than a third of a step.

    Not number by number: if a gradient is zero but for rounding, Adam makes whole steps of the rounding.
    """
    *_, before, end = list_checkpoints(other.checkpoints)
    own = choose_checkpoint(run.checkpoints, "last")
    assert own.step == end.step
    one_step = distance(before.folder, end.folder) / (end.step - before.step)
    assert distance(own.folder, end.folder) < one_step / 3


def train_words(recipe: Path, run: RunFolder, *settings: str) -> list[str]:
    """`echelon train` as a command of this Python, with settings as after `--set`."""
    sets = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "echelon", "train", str(recipe), "--run", str(run.path), *sets]


@contextlib.contextmanager
def under_way(command: Sequence[str], run: RunFolder) -> Iterator[subprocess.Popen[str]]:
    """A command while it trains; when this is left, also by a failure, it and the run's workers are gone."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            workers = worker_processes(run)
            process.kill()
            for worker in {*workers, *worker_processes(run)}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)


def begun_at(run: RunFolder) -> list[int]:
    """The steps from which the run was begun, and gone on with: the same end alone may have been computed anew."""
    return [int(r["step"]) for r in read_records(run.worker_records(0)) if r["kind"] == "start"]


def wait_for_step(run: RunFolder, step: int) -> None:
    def is_there() -> bool:
        records = read_records(run.worker_records(0))
        return any(r["kind"] == "step" and r["step"] >= step for r in records)

    wait_until(is_there, f"step {step} did not come")


def wait_for_checkpoint(run: RunFolder) -> None:
    wait_until(lambda: bool(list_checkpoints(run.checkpoints)), "no checkpoint was saved")


def wait_until(is_so: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)


def signal_worker(run: RunFolder, rank: int, number: signal.Signals) -> None:
    """Send a signal to the worker of this rank."""
    os.kill(worker_process(run, rank), number)


def worker_process(run: RunFolder, rank: int) -> int:
    """The worker of this rank, by the environment that it was started with."""
    own = f"RANK={rank}".encode()
    (worker,) = [
        process
        for process in worker_processes(run)
        if own in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    ]
    return worker


def worker_processes(run: RunFolder) -> list[int]:
    """Processes whose command line names this run as a worker's."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"echelon.train.worker" in words and str(run.path).encode() in words:
                found.append(int(entry.name))
    return found
