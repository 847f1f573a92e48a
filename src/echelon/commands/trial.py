"""A few steps by a recipe's own workers on its own data, in a run folder that is thrown away."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.run_setup import write_run
from echelon.data.batch_plan import AnyPrepared
from echelon.errors import TrainingError
from echelon.explain.units import show_workers
from echelon.launch.cores import available_cores
from echelon.launch.local import LocalJob
from echelon.launch.memory import available_memory
from echelon.monitor.bar import open_bars
from echelon.monitor.records import read_records
from echelon.recipe.schema import Recipe, Track
from echelon.resolve.measured import TrialMachine
from echelon.runfolder import RunFolder

_WARM_UP_STEPS = 5


def measure(
    recipe: Recipe,
    prepared: AnyPrepared,
    workers: int,
    steps: int,
    *,
    warm_up: int = _WARM_UP_STEPS,
    show: Callable[[float], None] = lambda _share: None,
) -> dict[str, Any]:
    """Train `steps` steps in a folder that is thrown away; the keys of `benchmark --json`.

    `show` is called with the share of the steps that has been made.
    """
    arguments = ["--benchmark", str(steps), "--warm-up", str(warm_up)]
    with tempfile.TemporaryDirectory(prefix="echelon-benchmark-") as folder:
        run = RunFolder(Path(folder))
        run.create()
        write_run(run, as_trial(recipe), prepared)
        with run.lock() as lock:
            job = LocalJob(run, workers, lock, arguments, hang_s=recipe.restart.hang_seconds)
            job.wait(lambda: show(_share_done(job, warm_up + steps)))
        measured = [record for record in read_records(run.worker_records(0)) if record["kind"] == "benchmark"]
    if not measured:
        raise TrainingError("interrupted before anything was measured")
    return {name: value for name, value in measured[-1].items() if name not in ("kind", "time")}


def _share_done(job: LocalJob, steps: int) -> float:
    """The share of the steps that every worker has made; a worker's heartbeat names the step that it is making."""
    making = [pulse.step for pulse in job.pulses().values()]
    return max(0, min(making, default=steps + 1) - 1) / steps


def as_trial(recipe: Recipe) -> Recipe:
    """The recipe without what reaches beyond the run folder: checkpoints at an address, and trackers."""
    checkpoint = recipe.checkpoint.model_copy(update={"mirror": None})
    return recipe.model_copy(update={"checkpoint": checkpoint, "track": Track(tensorboard=False)})


def this_machine(prepared: AnyPrepared, console: Console) -> TrialMachine:
    """This machine, measured with a recipe's data; a bar shows each trial."""

    def measure_trial(recipe: Recipe, workers: int, steps: int) -> dict[str, Any]:
        with open_bars(console) as bars:
            task = bars.add_task(f"trying {show_workers(workers)}", total=1.0)
            return measure(
                recipe,
                prepared,
                workers,
                steps,
                warm_up=1,
                show=lambda share: bars.update(task, completed=share),
            )

    return TrialMachine(available_cores(), available_memory(), measure_trial)
