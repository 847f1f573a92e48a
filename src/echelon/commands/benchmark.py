"""`benchmark`: the recipe's own workers on its own data, in a run folder that is thrown away."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from echelon.commands.prepare import prepare_data
from echelon.commands.training import TrainOptions
from echelon.commands.trial import measure, this_machine
from echelon.explain.units import show_steps
from echelon.monitor.bar import working
from echelon.recipe.loading import load_recipe
from echelon.recipe.workers import parse_workers
from echelon.resolve.measured import find_workers, resolve_batch


def benchmark(options: TrainOptions, steps: int, console: Console) -> dict[str, Any]:
    """Measure `steps` steps; the keys of `benchmark --json`."""
    recipe = load_recipe(options.recipe, options.overrides)
    prepared = prepare_data(recipe, options.recipe.parent, console)
    workers = options.workers or parse_workers(recipe.train.workers)
    machine = this_machine(prepared, console)
    recipe = resolve_batch(recipe, prepared, workers, machine, console)
    if workers.is_auto:
        workers = find_workers(recipe, machine, console)
    with working(console, f"measuring {show_steps(steps)} here") as show:
        return measure(recipe, prepared, workers.at_start(machine.cores), steps, show=show)
