"""`benchmark`: the recipe's own workers on its own data, in a run folder that is thrown away."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.preparing import prepare_data
from echelon.commands.training import TrainOptions, write_run
from echelon.errors import TrainingError
from echelon.launch.cores import available_cores
from echelon.launch.local import LocalJob
from echelon.monitor.records import read_records
from echelon.recipe.loading import load_recipe
from echelon.recipe.workers import parse_workers
from echelon.runfolder import RunFolder


def benchmark(options: TrainOptions, steps: int, console: Console) -> dict[str, Any]:
    """Measure `steps` steps; the keys of `benchmark --json`."""
    recipe = load_recipe(options.recipe, options.overrides)
    prepared = prepare_data(recipe, options.recipe.parent, console)
    with tempfile.TemporaryDirectory(prefix="echelon-benchmark-") as folder:
        run = RunFolder(Path(folder))
        run.create()
        write_run(run, recipe, prepared)
        with run.lock() as lock:
            workers = (options.workers or parse_workers(recipe.train.workers)).at_start(available_cores())
            job = LocalJob(run, workers, lock, ["--benchmark", str(steps)])
            job.wait(lambda: None)
        measured = [record for record in read_records(run.worker_records(0)) if record["kind"] == "benchmark"]
    if not measured:
        raise TrainingError("interrupted before anything was measured")
    return {name: value for name, value in measured[-1].items() if name not in ("kind", "time")}
