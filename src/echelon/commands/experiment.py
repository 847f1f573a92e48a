"""`experiment`: the trainings that answer a question, one after another, and their results side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from echelon.commands.report import make_reports, write_report
from echelon.commands.training import TrainOptions, local_recipe, open_run, train
from echelon.console import tell
from echelon.errors import RecipeError, UserError
from echelon.explain.comparison import Comparison, compare_reports, comparison_text
from echelon.explain.experiments import (
    QUESTIONS,
    WORKERS,
    Experiment,
    Stage,
    conclude,
    draw_experiment,
    plan_stages,
)
from echelon.explain.page import comparison_page
from echelon.explain.sheet import standalone_svg, to_png
from echelon.launch.cores import available_cores
from echelon.recipe.loading import load_recipe
from echelon.recipe.workers import WorkerRange, parse_workers


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
class ExperimentResult:
    """The result of an experiment."""

    comparison: Comparison
    question: str
    sentences: list[str]
    """The answer first."""
    files: list[Path]

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "answer": self.sentences[0],
            "sentences": self.sentences,
            "files": [str(file) for file in self.files],
            "measures": dict(self.comparison.measures),
            **self.comparison.to_json(),
        }

    def to_text(self) -> str:
        files = "".join(f"\n  {file}" for file in self.files)
        answer, *details = self.sentences
        told = "\n".join(f"  {line}" for line in details)
        return f"{comparison_text(self.comparison)}\n\n{self.question}\n{answer}\n{told}\n\nwritten:{files}"


def run_experiment(options: ExperimentOptions, console: Console) -> ExperimentResult:
    """Train or resume what the experiment needs, and compare; writes a chart and a page into its folder."""
    stages, notes = choose_stages(options)
    for note in notes:
        tell(console, note)
    for number, stage in enumerate(stages, start=1):
        run = options.to / stage.run
        console.print(f"experiment {options.kind}, {number} of {len(stages)}: {run}", highlight=False)
        result = train(_train_options(options, stage), console)
        if not result["finished"]:
            raise UserError(f"{run}: was interrupted; the same command resumes the experiment")
    runs = [options.to / name for name in dict.fromkeys(stage.run for stage in stages)]
    reports = make_reports(runs, None, None)
    comparison = compare_reports(reports)
    histories = [report.history for report in reports]
    chart = draw_experiment(options.kind, histories)
    files = [options.to / f"{options.kind}.{ending}" for ending in ("svg", "png", "html")]
    write_report(files[0], standalone_svg(chart))
    files[1].write_bytes(to_png(chart))
    write_report(files[2], comparison_page(comparison))
    answer, *details = conclude(options.kind, histories)
    return ExperimentResult(comparison, QUESTIONS[options.kind], [answer, *details, *notes], files)


def choose_stages(options: ExperimentOptions) -> tuple[list[Stage], list[str]]:
    """What the experiment will train, and notes on it, before anything is trained.

    An exchange that the recipe cannot do is left out; anything else that is wrong is the user's error.
    """
    if options.kind == "workers" and options.workers is not None:
        counts = ", ".join(map(str, WORKERS))
        raise UserError(f"--workers: this experiment trains with {counts} workers; leave it out")
    recipe = load_recipe(
        local_recipe(options.recipe), [*options.overrides, *Stage("", options.steps).overrides()]
    )
    workers = (options.workers or parse_workers(recipe.train.workers)).at_start(available_cores())
    kept, notes = list[Stage](), list[str]()
    for stage in plan_stages(options.kind, options.steps, recipe, workers):
        try:
            planned, _ = open_run(_train_options(options, stage))
        except RecipeError as error:
            if options.kind != "exchanges":
                raise
            notes.append(f"{stage.run} is left out: {'; '.join(map(str, error.problems))}")
        else:
            kept.append(stage)
    if not kept:
        raise UserError("nothing is left to compare\n" + "\n".join(notes))
    if planned.train.slots != recipe.train.slots:
        notes.append(
            f"train.slots is {planned.train.slots} in all of them, not {recipe.train.slots} as in the recipe, so that "
            "workers share a step out evenly"
        )
    return kept, notes


def _train_options(options: ExperimentOptions, stage: Stage) -> TrainOptions:
    workers = WorkerRange(stage.workers, stage.workers) if stage.workers else options.workers
    return TrainOptions(
        options.recipe, options.to / stage.run, workers, [*options.overrides, *stage.overrides()]
    )
