"""`experiment`: the trainings that a question needs, one after another, and what came of them side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.reporting import make_reports, write_report
from echelon.commands.training import TrainOptions, train
from echelon.errors import UserError
from echelon.explain.comparison import Comparison, compare_reports, comparison_text
from echelon.explain.drawing import standalone_svg, to_png
from echelon.explain.experiments import Experiment, conclude, draw_experiment, plan_stages
from echelon.explain.page import comparison_page
from echelon.recipe.workers import WorkerRange


@dataclass(frozen=True)
class ExperimentOptions:
    """What an experiment is asked for."""

    kind: Experiment
    recipe: Path
    steps: int
    to: Path
    workers: WorkerRange | None = None
    """For the experiments that are not about workers."""
    overrides: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What an experiment showed."""

    comparison: Comparison
    sentences: list[str]
    files: list[Path]

    def to_json(self) -> dict[str, Any]:
        return {
            "sentences": self.sentences,
            "files": [str(file) for file in self.files],
            "measures": dict(self.comparison.measures),
            **self.comparison.to_json(),
        }

    def words(self) -> str:
        files = "".join(f"\n  {file}" for file in self.files)
        return f"{comparison_text(self.comparison)}\n\n" + "\n".join(self.sentences) + f"\n\nwritten:{files}"


def run_experiment(options: ExperimentOptions, console: Console) -> Outcome:
    """Train what the experiment needs, or go on with it, and compare; writes a chart and a page into its folder."""
    stages = plan_stages(options.kind, options.steps)
    for number, stage in enumerate(stages, start=1):
        run = options.to / stage.run
        console.print(f"experiment {options.kind}, {number} of {len(stages)}: {run}", highlight=False)
        workers = WorkerRange(stage.workers, stage.workers) if stage.workers else options.workers
        settings = [*options.overrides, *stage.overrides()]
        result = train(TrainOptions(options.recipe, run, workers, settings), console)
        if not result["finished"]:
            raise UserError(f"{run}: was interrupted; the same command goes on with the experiment")
    runs = [options.to / name for name in dict.fromkeys(stage.run for stage in stages)]
    reports = make_reports(runs, None, None)
    comparison = compare_reports(reports)
    chart = draw_experiment(options.kind, stages, reports)
    files = [options.to / f"{options.kind}.{ending}" for ending in ("svg", "png", "html")]
    write_report(files[0], standalone_svg(chart))
    files[1].write_bytes(to_png(chart))
    write_report(files[2], comparison_page(comparison))
    return Outcome(comparison, conclude(options.kind, stages, reports), files)
