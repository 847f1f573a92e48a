"""What a search finds, and what it costs, against the full grid: the same settings, each trained to the end.

Both are ordinary searches in folders of their own, so that a bench that was interrupted resumes. The grid takes as long
as all of its trainings; it is trained once, and later calls with the same folder compare with it. Usage:
    python -m bench.bench_search [recipes/multi30k.toml] [--steps 1600] [--folder DIR] [--factor 4] [--rungs 2]
        [--parallel 1] [--workers 1]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from echelon.cli.output import messages
from echelon.commands.search import SearchOptions, SearchResult, run_search
from echelon.recipe.workers import parse_workers

SPACE = ("schedule.learning_rate=5e-4..8e-3:log:4", "model.dropout=0.05,0.1,0.2,0.4")
"""16 settings."""
SETTINGS = ("checkpoint.best=loss", "schedule.warmup_steps=80", "evaluate.every=100", "checkpoint.every=400")
"""A warm-up and intervals that suit a shortened training."""


def compare(grid: SearchResult, found: SearchResult) -> dict[str, Any]:
    """How much worse the search's best loss is than the grid's, and its share of the grid's steps."""
    assert grid.best is not None
    assert found.best is not None
    assert grid.best.value is not None
    assert found.best.value is not None
    return {
        "grid_loss": grid.best.value,
        "grid_settings": grid.best.values,
        "search_loss": found.best.value,
        "search_settings": found.best.values,
        "worse_by": found.best.value / grid.best.value - 1,
        "share_of_steps": found.steps / grid.steps,
        "grid_steps": grid.steps,
        "search_steps": found.steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("recipe", nargs="?", type=Path, default=Path("recipes/multi30k.toml"))
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--folder", type=Path, default=Path("bench-search"))
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--rungs", type=int, default=2)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--workers", default="1")
    given = parser.parse_args()
    length = [f"train.steps={given.steps}", "train.epochs="]
    full = SearchOptions(
        given.recipe,
        SPACE,
        sampler="grid",
        parallel=given.parallel,
        rungs=0,
        folder=given.folder / "grid",
        workers=parse_workers(given.workers),
        overrides=[*SETTINGS, *length],
    )
    halving = given.folder / f"search-{given.factor}-{given.rungs}"
    searched = replace(full, factor=given.factor, rungs=given.rungs, folder=halving)
    results = [run_search(options, messages()) for options in (searched, full)]
    for result in results:
        print(result.to_text(), end="\n\n")
    if all(result.is_finished for result in results):
        print(json.dumps(compare(results[1], results[0]), indent=2))


if __name__ == "__main__":
    main()
