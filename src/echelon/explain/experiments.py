"""The experiments of a systems course: which runs each needs, and the chart of its results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from echelon.explain.charts import Series, line_chart
from echelon.explain.history import History
from echelon.explain.sheet import Sheet
from echelon.explain.units import show_count, show_duration, show_number, show_share, show_step
from echelon.recipe.schema import Recipe

Experiment = Literal["checkpoints", "resume", "workers", "exchanges"]
INTERVALS = (100, 500, 1000)
WORKERS = (1, 2, 4)
EXCHANGES = ("all_reduce", "compressed", "low_rank", "local")
_NOTICED = 0.01
"""How much longer a run must be, relative to another, to be called longer."""


@dataclass(frozen=True)
class Stage:
    """One `echelon train` of an experiment; stages of the same run resume from each other."""

    run: str
    steps: int
    workers: int | None = None
    settings: tuple[str, ...] = ()
    stop_at: int | None = None
    """The step at which it is interrupted."""

    def overrides(self) -> list[str]:
        """Settings other than the recipe's."""
        stop = () if self.stop_at is None else (f"train.stop_at={self.stop_at}",)
        return ["train.epochs=", f"train.steps={self.steps}", *self.settings, *stop]


def plan_stages(experiment: Experiment, steps: int, recipe: Recipe, workers: int) -> list[Stage]:
    """The trainings of an experiment, in order; `workers` is used unless the experiment varies it."""
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
    """Steps between two checkpoints, scaled down if training is too short for the usual ones."""
    if steps >= 2 * INTERVALS[-1]:
        return list(INTERVALS)
    return sorted({max(1, steps * every // (2 * INTERVALS[-1])) for every in INTERVALS})


def even_slots(recipe: Recipe, counts: Sequence[int]) -> tuple[str, ...]:
    """The setting with which each of these worker counts divides a step evenly; none if it already does."""
    slots = math.lcm(recipe.train.slots, *counts)
    return () if slots == recipe.train.slots else (f"train.slots={slots}",)


def draw_experiment(experiment: Experiment, runs: Sequence[History]) -> Sheet:
    """What an experiment shows, as one chart."""
    match experiment:
        case "checkpoints":
            points = [(float(_interval(run)), 100 * run.share_of("checkpoint")) for run in runs[1:]]
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
            alone = runs[0].loop_seconds
            faster = [(float(run.size), alone / run.loop_seconds) for run in runs if run.loop_seconds]
            ideal = [(count, count / runs[0].size) for count, _ in faster]
            series = [Series("measured", faster), Series("ideal", ideal, is_dashed=True, colour=7)]
            title = f"Times as fast as {runs[0].run.name}, wall time"
            return line_chart(title, series, x_label="workers", starts_at_zero=True)


def _loss_series(runs: Sequence[History], dashed_from: int) -> list[Series]:
    return [
        Series(run.run.name, list(zip(*run.losses(), strict=True)), is_dashed=number >= dashed_from)
        for number, run in enumerate(runs)
    ]


QUESTIONS: dict[Experiment, str] = {
    "checkpoints": "What do frequent checkpoints cost?",
    "resume": "Does an interrupted run end as if it had not been interrupted?",
    "workers": "How much faster are more workers?",
    "exchanges": "Which exchange is the fastest, and what does it do to the loss?",
}


def conclude(experiment: Experiment, runs: Sequence[History]) -> list[str]:
    """The answer to the experiment's question in one sentence, then a line for each run.

    Times are wall time of the same steps, scoring and saving included and starting left out: the figures of the
    comparison's row "steps, scoring and saving".
    """
    match experiment:
        case "checkpoints":
            return [_answer_checkpoints(runs), *map(_about_checkpoints, runs)]
        case "resume":
            whole, resumed = runs
            return [_tell_apart(whole, resumed)]
        case "exchanges":
            return [_answer_exchanges(runs), *map(_about_exchange, runs)]
        case "workers":
            return [_answer_workers(runs), *(_about_workers(run, runs[0]) for run in runs)]


def _answer_checkpoints(runs: Sequence[History]) -> str:
    """The most frequent against hardly any."""
    few, often = runs[0], min(runs[1:] or runs, key=_interval)
    share = often.loop_seconds / few.loop_seconds - 1 if few.loop_seconds else 0.0
    more = len(often.checkpoints) - len(few.checkpoints)
    each = (often.loop_seconds - few.loop_seconds) / more if more > 0 else 0.0
    times = f"{show_duration(often.loop_seconds)} against {show_duration(few.loop_seconds)}"
    every = "step" if _interval(often) == 1 else f"{_interval(often)} steps"
    if share < _NOTICED:
        return (
            f"Nothing that can be measured here: with a checkpoint every {every} the same steps take {times}."
        )
    return (
        f"A checkpoint every {every} makes the run {show_share(share)} longer than hardly any "
        f"({times}), {show_step(each)} for each further checkpoint." + _other_causes(few, often)
    )


def _other_causes(few: History, often: History) -> str:
    """That saving does not explain most of a difference in time, if so."""
    saving = often.totals.get("checkpoint", 0.0) - few.totals.get("checkpoint", 0.0)
    if saving >= (often.loop_seconds - few.loop_seconds) / 2:
        return ""
    return (
        f" But only {show_duration(max(0.0, saving))} of that was waiting for checkpoints; the rest has another "
        "cause, such as other programs on this machine."
    )


def _interval(run: History) -> int:
    every = run.recipe.checkpoint.every
    return every if isinstance(every, int) else run.planned_steps


def _about_checkpoints(run: History) -> str:
    return (
        f"{run.run.name}: {show_duration(run.loop_seconds)}; checkpoints written: {len(run.checkpoints)}, in "
        f"{show_share(run.share_of('checkpoint'))} of the time; {show_step(run.pace)} a step"
    )


def _answer_exchanges(runs: Sequence[History]) -> str:
    fastest = min(runs, key=lambda run: run.loop_seconds)
    losses = {run.run.name: run.last_loss for run in runs if run.last_loss is not None}
    sentence = (
        f"{fastest.run.name} is the fastest: {show_duration(fastest.loop_seconds)} for "
        f"{show_count(len(fastest.steps))} steps"
    )
    if fastest is not runs[0] and fastest.loop_seconds:
        sentence += f", {runs[0].loop_seconds / fastest.loop_seconds:.2f} times as fast as {runs[0].run.name}"
    if fastest.run.name not in losses:
        return f"{sentence}."
    best = min(losses, key=lambda name: losses[name])
    sentence += f"; it ends with a training loss of {show_number(losses[fastest.run.name])}"
    return (
        f"{sentence}, the lowest."
        if best == fastest.run.name
        else (f"{sentence}, the lowest is {show_number(losses[best])} ({best}).")
    )


def _about_exchange(run: History) -> str:
    return (
        f"{run.run.name}: {show_duration(run.loop_seconds)}; {show_step(run.pace)} a step, "
        f"{show_count(run.targets_per_second)} {run.unit} a second; "
        f"the training loss at the end is {show_number(run.last_loss)}"
    )


def _answer_workers(runs: Sequence[History]) -> str:
    first, most = runs[0], max(runs, key=lambda run: run.size)
    faster = first.loop_seconds / most.loop_seconds if most.loop_seconds else 0.0
    return (
        f"{most.size} workers make the same steps {faster:.2f} times as fast as {first.size}: "
        f"{show_duration(most.loop_seconds)} against {show_duration(first.loop_seconds)}, "
        f"{show_share(faster * first.size / most.size)} of perfect scaling."
    )


def _about_workers(run: History, first: History) -> str:
    faster = first.loop_seconds / run.loop_seconds if run.loop_seconds else 0.0
    return (
        f"{run.run.name}: {show_duration(run.loop_seconds)}, {faster:.2f} times as fast as {first.run.name}; "
        f"{show_count(run.targets_per_second)} {run.unit} a second while it makes steps"
    )


def _tell_apart(whole: History, resumed: History) -> str:
    """Whether two runs have the same losses, and at which step they diverge."""
    first, second = (dict(zip(*run.losses(), strict=True)) for run in (whole, resumed))
    apart = next((step for step in sorted(first | second) if first.get(step) != second.get(step)), None)
    if apart is None:
        return "The resumed run's losses are those of the uninterrupted one, every step and every digit."
    return (
        f"The two curves differ from step {apart:,.0f}: {first.get(apart, 'none')} without the interruption, "
        f"{second.get(apart, 'none')} with it."
    )
