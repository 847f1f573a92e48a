"""A few steps by a recipe's own workers on its own data, in a run folder that is thrown away."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from echelon.commands.run_setup import write_run
from echelon.data.batch_plan import AnyPrepared
from echelon.errors import TrainingError
from echelon.launch.cores import available_cores
from echelon.launch.local import LocalJob
from echelon.launch.memory import available_memory
from echelon.monitor.records import read_records
from echelon.recipe.schema import Recipe, Track
from echelon.resolve.measured import TrialMachine
from echelon.runfolder import RunFolder


def measure(
    recipe: Recipe, prepared: AnyPrepared, workers: int, steps: int, warm_up: int | None = None
) -> dict[str, Any]:
    """Train `steps` steps in a folder that is thrown away; the keys of `benchmark --json`."""
    arguments = ["--benchmark", str(steps)]
    if warm_up is not None:
        arguments += ["--warm-up", str(warm_up)]
    with tempfile.TemporaryDirectory(prefix="echelon-benchmark-") as folder:
        run = RunFolder(Path(folder))
        run.create()
        write_run(run, as_trial(recipe), prepared)
        with run.lock() as lock:
            LocalJob(run, workers, lock, arguments, hang_s=recipe.restart.hang_seconds).wait(lambda: None)
        measured = [record for record in read_records(run.worker_records(0)) if record["kind"] == "benchmark"]
    if not measured:
        raise TrainingError("interrupted before anything was measured")
    return {name: value for name, value in measured[-1].items() if name not in ("kind", "time")}


def as_trial(recipe: Recipe) -> Recipe:
    """The recipe without what reaches beyond the run folder: checkpoints at an address, and trackers."""
    checkpoint = recipe.checkpoint.model_copy(update={"mirror": None})
    return recipe.model_copy(update={"checkpoint": checkpoint, "track": Track(tensorboard=False)})


def this_machine(prepared: AnyPrepared) -> TrialMachine:
    """This machine, measured with a recipe's data."""

    def measure_trial(recipe: Recipe, workers: int, steps: int) -> dict[str, Any]:
        return measure(recipe, prepared, workers, steps, warm_up=1)

    return TrialMachine(available_cores(), available_memory(), measure_trial)
