"""`echelon benchmark`."""

from __future__ import annotations

from typing import Annotated

import typer

from echelon.cli.options import Json, LocalWorkers, RecipeFile, Set
from echelon.cli.output import messages, show
from echelon.console import output_width, wrap


def benchmark(
    recipe: RecipeFile,
    steps: Annotated[int, typer.Option(min=1, help="Steps to measure, after a few warm-up steps.")] = 30,
    workers: LocalWorkers = None,
    set_: Set = None,
    json_: Json = False,
) -> None:
    """Train a few steps without saving, and measure the speed."""
    from echelon.commands.benchmark import benchmark as measure
    from echelon.commands.results import format_benchmark
    from echelon.commands.training import TrainOptions

    result = measure(TrainOptions(recipe, None, workers, set_ or []), steps, messages())
    show(json_, result, wrap(format_benchmark(result), output_width()))
