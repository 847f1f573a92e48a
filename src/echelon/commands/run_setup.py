"""What a run's folder holds before its workers start."""

from __future__ import annotations

import time
from typing import Any, Protocol

from echelon.data.batch_plan import AnyPrepared
from echelon.monitor.provenance import collect_provenance
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import find_task
from echelon.resolve.run_recipe import write_recipe
from echelon.runfolder import RunFolder, read_json, write_json


class ModelFilesDeclaration(Protocol):
    """What a task says about the files that its models need."""

    def write_model_files(self, run: RunFolder, prepared: AnyPrepared) -> None:
        """Put what a model needs beside its weights into the run's folder."""
        ...

    def provenance(self, recipe: Recipe) -> dict[str, Any]:
        """What the provenance of a run says of the task."""
        ...


def write_run(run: RunFolder, recipe: Recipe, prepared: AnyPrepared) -> None:
    """Write what workers need, and where the run comes from, into its folder."""
    write_recipe(run, recipe)
    write_json(run.data, {"folder": str(prepared.folder.resolve()), "key": prepared.key})
    task: ModelFilesDeclaration = find_task(recipe.task)
    task.write_model_files(run, prepared)
    start = {**collect_provenance(), **task.provenance(recipe)}
    write_json(run.provenance, [*_earlier_starts(run), start])


def _earlier_starts(run: RunFolder) -> list[Any]:
    """The entries of earlier starts; a damaged file is moved aside, because training does not need it."""
    try:
        starts = read_json(run.provenance)
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        starts = None
    if isinstance(starts, list):
        return starts
    run.provenance.replace(run.provenance.with_name(f"damaged-{time.time_ns()}-{run.provenance.name}"))
    return []
