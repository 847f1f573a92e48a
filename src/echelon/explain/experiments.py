"""The experiments of a systems course: which runs each needs, and the chart that shows what came of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echelon.explain.charts import Series, line_chart
from echelon.explain.drawing import Sheet
from echelon.explain.history import History
from echelon.explain.wording import show_count, show_number, show_share, show_step
from echelon.recipe.schema import Recipe

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
    settings: tuple[str, ...] = ()
    stop_at: int | None = None
    """The step at which it is interrupted."""

    def overrides(self) -> list[str]:
        """What is set beside the recipe."""
        stop = () if self.stop_at is None else (f"train.stop_at={self.stop_at}",)
        return ["train.epochs=", f"train.steps={self.steps}", *self.settings, *stop]


def plan_stages(experiment: Experiment, steps: int, recipe: Recipe, workers: int) -> list[Stage]:
    """The trainings of an experiment, in order; `workers` train in those that are not about their number."""
    match experiment:
        case "checkpoints":
            # Between two scorings no checkpoint is the best one, so all that are written are due to the interval.
            scored = f"evaluate.every={steps}"
            by_run = {f"every-{every}": every for every in checkpoint_intervals(steps)}
            return [
                Stage(run, steps, settings=(scored, f"checkpoint.every={every}"))
                for run, every in {"at-the-end": steps, **by_run}.items()
            ]
        case "resume":
            half = max(1, steps // 2)
            settings = (f"checkpoint.every={half}",)
            return [
                Stage("uninterrupted", steps, settings=settings),
                Stage("resumed", steps, settings=settings, stop_at=half),
                Stage("resumed", steps, settings=settings),
            ]
        case "workers":
            slots = even_slots(recipe, WORKERS)
            return [Stage(f"workers-{count}", steps, count, slots) for count in WORKERS]
        case "exchanges":
            slots = even_slots(recipe, (workers,))
            exchanges = [
                Stage(name, steps, workers, (*slots, f"train.exchange={name}")) for name in EXCHANGES
            ]
            servers = (*slots, "train.exchange=parameter_server", "exchange.servers=1")
            return [
                *exchanges,
                # One process serves, so that as many train as without servers.
                Stage("servers-synchronous", steps, workers + 1, (*servers, "exchange.synchronous=true")),
                Stage("servers-asynchronous", steps, workers + 1, (*servers, "exchange.synchronous=false")),
            ]


def checkpoint_intervals(steps: int) -> list[int]:
    """Steps between two checkpoints; where training is too short for the usual ones, the same shares of it."""
    if steps >= 2 * INTERVALS[-1]:
        return list(INTERVALS)
    return sorted({max(1, steps * every // (2 * INTERVALS[-1])) for every in INTERVALS})


def even_slots(recipe: Recipe, counts: Sequence[int]) -> tuple[str, ...]:
    """The setting with which each of these numbers of workers shares a step out evenly; none where it is so already."""
    slots = math.lcm(recipe.train.slots, *counts)
    return () if slots == recipe.train.slots else (f"train.slots={slots}",)


def draw_experiment(experiment: Experiment, runs: Sequence[History]) -> Sheet:
    """What an experiment shows, as one chart."""
    match experiment:
        case "checkpoints":
            points = [
                (float(run.recipe.checkpoint.every), 100 * run.share_of("checkpoint")) for run in runs[1:]
            ]
            return line_chart(
                "What checkpoints cost, % of the time",
                [Series("cost", points)],
                x_label="steps between two checkpoints",
                starts_at_zero=True,
            )
        case "resume":
            return line_chart("Training loss, interrupted and not", _loss_series(runs, dashed_from=1))
        case "exchanges":
            return line_chart("Training loss by exchange", _loss_series(runs, dashed_from=len(runs)))
        case "workers":
            speeds = [(float(run.size), run.targets_per_second) for run in runs]
            ideal = [(count, count * speeds[0][1] / speeds[0][0]) for count, _ in speeds]
            series = [Series("measured", speeds), Series("ideal", ideal, is_dashed=True, colour=7)]
            unit = runs[0].unit
            return line_chart(
                f"{unit[0].upper()}{unit[1:]} a second", series, x_label="workers", starts_at_zero=True
            )


def _loss_series(runs: Sequence[History], dashed_from: int) -> list[Series]:
    return [
        Series(run.run.name, list(zip(*run.losses(), strict=True)), is_dashed=number >= dashed_from)
        for number, run in enumerate(runs)
    ]


def conclude(experiment: Experiment, runs: Sequence[History]) -> list[str]:
    """What an experiment shows, in sentences."""
    match experiment:
        case "checkpoints":
            return [
                f"{run.run.name}: checkpoints written: {len(run.checkpoints)}, in "
                f"{show_share(run.share_of('checkpoint'))} of the time; {show_step(run.seconds_per_step)} a step"
                for run in runs
            ]
        case "resume":
            whole, resumed = runs
            return [_tell_apart(whole, resumed)]
        case "exchanges":
            return [
                f"{run.run.name}: {show_step(run.targets_per_step / run.targets_per_second)} a step, "
                f"{show_count(run.targets_per_second)} {run.unit} a second; "
                f"the training loss at the end is {show_number(run.last_loss)}"
                for run in runs
                if run.targets_per_second
            ]
        case "workers":
            alone = runs[0].targets_per_second
            return [
                f"{run.run.name}: {show_count(run.targets_per_second)} {run.unit} a second, "
                f"{run.targets_per_second / alone:.2f} times one worker's"
                for run in runs
                if alone
            ]


def _tell_apart(whole: History, resumed: History) -> str:
    """Whether two runs have the same losses, and where they part."""
    first, second = (dict(zip(*run.losses(), strict=True)) for run in (whole, resumed))
    apart = next((step for step in sorted(first | second) if first.get(step) != second.get(step)), None)
    if apart is None:
        return "The resumed run's losses are those of the uninterrupted one, every step and every digit."
    return (
        f"The two curves differ from step {apart:,.0f}: {first.get(apart, 'none')} without the interruption, "
        f"{second.get(apart, 'none')} with it."
    )
