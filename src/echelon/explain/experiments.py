"""The experiments of a systems course: which runs each needs, and the chart that shows what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echelon.explain.charts import Series, line_chart
from echelon.explain.drawing import Sheet
from echelon.explain.report import Report
from echelon.explain.wording import show_count, show_share, show_step

Experiment = Literal["checkpoints", "resume", "workers", "exchanges"]
INTERVALS = (100, 500, 1000)
WORKERS = (1, 2, 4)
EXCHANGES = ("all_reduce", "compressed", "low_rank", "local")


@dataclass(frozen=True)
class Stage:
    """One `echelon train` of an experiment; stages of the same run go on from each other."""

    run: str
    steps: int
    workers: int | None = None
    checkpoint_every: int | None = None
    exchange: str | None = None

    def overrides(self) -> list[str]:
        """What is set beside the recipe."""
        settings = ["train.epochs=", f"train.steps={self.steps}"]
        if self.checkpoint_every is not None:
            settings.append(f"checkpoint.every={self.checkpoint_every}")
        if self.exchange is not None:
            settings.append(f"train.exchange={self.exchange}")
        return settings


def plan_stages(experiment: Experiment, steps: int) -> list[Stage]:
    """The trainings of an experiment, in order."""
    match experiment:
        case "checkpoints":
            none = Stage("never", steps, checkpoint_every=steps)
            return [none, *(Stage(f"every-{every}", steps, checkpoint_every=every) for every in INTERVALS)]
        case "resume":
            half = max(1, steps // 2)
            return [
                Stage("uninterrupted", steps, checkpoint_every=half),
                Stage("resumed", half, checkpoint_every=half),
                Stage("resumed", steps, checkpoint_every=half),
            ]
        case "workers":
            return [Stage(f"workers-{count}", steps, workers=count) for count in WORKERS]
        case "exchanges":
            return [Stage(name, steps, exchange=name) for name in EXCHANGES]


def draw_experiment(experiment: Experiment, stages: Sequence[Stage], reports: Sequence[Report]) -> Sheet:
    """What an experiment shows, as one chart; reports are those of the runs, in the order of the stages."""
    by_run = dict(zip(dict.fromkeys(stage.run for stage in stages), reports, strict=True))
    match experiment:
        case "checkpoints":
            points = [
                (float(stage.checkpoint_every or 0), 100 * checkpoint_share(by_run[stage.run]))
                for stage in stages
                if stage.run != "never"
            ]
            return line_chart(
                "What checkpoints cost, % of the time",
                [Series("cost", points)],
                x_label="steps between two checkpoints",
                starts_at_zero=True,
            )
        case "resume":
            series = [
                Series(name, list(zip(*report.history.losses(), strict=True)), is_dashed=number > 0)
                for number, (name, report) in enumerate(by_run.items())
            ]
            return line_chart("Training loss, interrupted and not", series)
        case "exchanges":
            series = [
                Series(name, list(zip(*report.history.losses(), strict=True)))
                for name, report in by_run.items()
            ]
            return line_chart("Training loss by exchange", series)
        case "workers":
            speeds = [(float(stage.workers or 1), targets_per_second(by_run[stage.run])) for stage in stages]
            ideal = [(count, count * speeds[0][1] / speeds[0][0]) for count, _ in speeds]
            series = [Series("measured", speeds), Series("ideal", ideal, is_dashed=True, colour=7)]
            unit = reports[0].history.unit
            return line_chart(
                f"{unit[0].upper()}{unit[1:]} a second", series, x_label="workers", starts_at_zero=True
            )


def conclude(experiment: Experiment, stages: Sequence[Stage], reports: Sequence[Report]) -> list[str]:
    """What an experiment shows, in sentences."""
    by_run = dict(zip(dict.fromkeys(stage.run for stage in stages), reports, strict=True))
    match experiment:
        case "checkpoints":
            return [
                f"{name}: {len(report.history.checkpoints)} checkpoints, {show_share(checkpoint_share(report))} of the "
                f"time; {show_step(report.history.seconds_per_step)} a step"
                for name, report in by_run.items()
            ]
        case "resume":
            (_, whole), (_, resumed) = (report.history.losses() for report in by_run.values())
            if whole == resumed:
                return [
                    "The resumed run's losses are those of the uninterrupted one, every step and every digit."
                ]
            apart = next(n for n, (a, b) in enumerate(zip(whole, resumed, strict=False), 1) if a != b)
            return [
                f"The two curves differ from step {apart:,}: {whole[apart - 1]} and {resumed[apart - 1]}."
            ]
        case "exchanges":
            return [
                f"{name}: {show_step(report.history.seconds_per_step)} a step, "
                f"{show_count(targets_per_second(report))} {report.history.unit} a second; "
                f"the loss of the last steps is {last_loss(report):.4f}"
                for name, report in by_run.items()
            ]
        case "workers":
            alone = targets_per_second(reports[0])
            return [
                f"{name}: {show_count(speed)} {report.history.unit} a second, {speed / alone:.2f} times one worker's"
                for name, report in by_run.items()
                if (speed := targets_per_second(report))
            ]


def last_loss(report: Report) -> float:
    """Mean of the last tenth of the steps."""
    _, losses = report.history.losses()
    last = losses[-max(1, len(losses) // 10) :]
    return sum(last) / max(1, len(last))


def checkpoint_share(report: Report) -> float:
    """Share of a run's time in which training waited for checkpoints."""
    total = sum(report.history.totals.values())
    return report.history.totals.get("checkpoint", 0.0) / total if total else 0.0


def targets_per_second(report: Report) -> float:
    """Of the steps that are typical of a run."""
    history = report.history
    targets = [step["targets"] for step in history.first.typical() if "targets" in step]
    pace = history.seconds_per_step
    return sum(targets) / len(targets) / pace if targets and pace else 0.0
