"""`benchmark`: the recipe's own workers on its own data, in a run folder that is thrown away."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from echelon.commands.preparing import prepare_data
from echelon.commands.training import TrainOptions
from echelon.commands.tuning import find_workers, measure, resolve_batch
from echelon.launch.cores import available_cores
from echelon.recipe.loading import load_recipe
from echelon.recipe.workers import parse_workers


def benchmark(options: TrainOptions, steps: int, console: Console) -> dict[str, Any]:
    """Measure `steps` steps; the keys of `benchmark --json`."""
    recipe = load_recipe(options.recipe, options.overrides)
    prepared = prepare_data(recipe, options.recipe.parent, console)
    workers = options.workers or parse_workers(recipe.train.workers)
    recipe = resolve_batch(recipe, prepared, workers, console)
    if workers.is_auto:
        workers = find_workers(recipe, prepared, console)
    return measure(recipe, prepared, workers.at_start(available_cores()), steps)
