"""`report`: a run explained. Measurements become answers and charts; other modules render them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echelon.data.batch_plan import AnyPrepared, open_data
from echelon.errors import DataError
from echelon.explain.answers import Answer, Case, answer_all, improvements_of
from echelon.explain.charts import Series, line_chart, share_chart, stack_chart
from echelon.explain.class_accuracy import draw_confusion, read_class_scores
from echelon.explain.curves import smooth
from echelon.explain.description import describe_recipe
from echelon.explain.diagnosis import find_straggler
from echelon.explain.history import History, RecordStore, read_history
from echelon.explain.host_samples import HostLoad, host_state
from echelon.explain.parameter_servers import draw_serving, find_processes
from echelon.explain.reference_curve import Reference, answer_reference
from echelon.explain.sheet import Sheet
from echelon.explain.workload import recipe_workload
from echelon.monitor.meter import PHASES
from echelon.monitor.run_state import FRESH_S
from echelon.recipe.schedule import rate_by_step
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import RecipeDeclaration, find_task
from echelon.runfolder import RunFolder, read_json

_COLUMNS = 60
"""Points of a chart that shows what steps are made of."""


@dataclass(frozen=True)
class Report:
    """Everything there is to say about a run."""

    name: str
    history: History
    case: Case
    answers: list[Answer]
    charts: dict[str, Sheet]
    made: float
    """When, in seconds since the epoch."""

    def to_json(self) -> dict[str, Any]:
        history, wire = self.history, self.case.traffic
        straggler = find_straggler(history)
        loss, score = self.case.loss_outlook, self.case.score_outlook
        return {
            "run": str(history.run.path),
            "name": self.name,
            "outcome": history.outcome,
            "test": history.test.to_json() if history.test else None,
            "validation": history.best_validation(),
            "steps": len(history.steps),
            "seconds": history.training_seconds,
            "pause_seconds": history.pause_seconds,
            "seconds_per_step": history.seconds_per_step,
            "percentiles": {"p50": history.percentile(0.5), "p99": history.percentile(0.99)},
            "workers": history.size,
            "hosts": history.num_hosts,
            "bound": self.case.bound,
            "breakdown": history.account.parts(),
            "step_breakdown": self.case.time.to_json(),
            "network": {
                "bytes_per_step": wire.measured,
                "expected_bytes_per_step": wire.expected,
                "line_bytes_per_s": wire.line_bytes_per_s,
                "line_share": wire.used,
            },
            "parameter_server": [dataclasses.asdict(each) for each in find_processes(history)],
            "straggler": straggler.worker.rank if straggler else None,
            "outlook": {
                "steps": round(history.ahead * history.last_step),
                "loss": loss.to_json() if loss else None,
                "score": None if isinstance(score, str) else score.to_json(),
            },
            "improvements": [dataclasses.asdict(entry) for entry in improvements_of(self.case)],
            "answers": {answer.key: dataclasses.asdict(answer) for answer in self.answers},
        }


def build_report(
    run: RunFolder,
    hourly: float | None = None,
    reference: Path | None = None,
    store: RecordStore | None = None,
) -> Report:
    """Explain a run at any stage; with a `store`, repeated calls read only new records."""
    history = read_history(run, store)
    prepared = _find_prepared(run, history.recipe)
    workload = recipe_workload(history.recipe, prepared, describe_recipe(history.recipe, prepared))
    case = Case(history, prepared.manifest if prepared else None, workload, hourly)
    known = Reference.load(reference) if reference else None
    answers = answer_all(case, [] if known is None else [answer_reference(known, history)])
    return Report(history.run.name, history, case, answers, draw_charts(case, known), time.time())


def _find_prepared(run: RunFolder, recipe: Recipe) -> AnyPrepared | None:
    """The run's prepared data, if they are on this machine and complete."""
    try:
        folder = Path(read_json(run.data)["folder"])
        return open_data(recipe, folder) if folder.is_absolute() else None
    except (OSError, ValueError, KeyError, TypeError, DataError):
        return None


def draw_charts(case: Case, reference: Reference | None = None) -> dict[str, Sheet]:
    """The charts of a run by name."""
    history = case.history
    confusion = draw_confusion(read_class_scores(history.run))
    return {
        "loss": _loss_chart(history, reference),
        "score": _score_chart(history),
        "rate": _rate_chart(history),
        "breakdown": share_chart("Where the time went", _named(history.account.parts())),
        "step_time": _step_time_chart(history),
        "speed": _speed_chart(history),
        "traffic": _traffic_chart(history),
        "use": _use_chart(history),
        **draw_serving(history),
    } | ({"confusion": confusion} if confusion else {})


def _named(parts: dict[str, float]) -> list[tuple[str, float]]:
    names = {
        "checkpoint": "checkpoints",
        "evaluation": "scoring",
        "unaccounted": "not accounted for",
    }
    return [(names.get(part, part), seconds) for part, seconds in parts.items()]


def _loss_chart(history: History, reference: Reference | None) -> Sheet:
    steps, losses = history.losses()
    smoothed = map(float, smooth(losses))
    series = [Series("training", list(zip(steps, smoothed, strict=True)))]
    series.append(Series("validation", _points(history.valid, "loss")))
    if reference is not None:
        series.append(Series("reference", reference.points(), is_dashed=True))
    return line_chart("Loss", series)


def _points(records: Sequence[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(float(r["step"]), float(r[name])) for r in records if r.get(name) is not None]


def _score_chart(history: History) -> Sheet:
    task: RecipeDeclaration = find_task(history.recipe.task)
    series = [Series(score.name, _points(history.valid, score.key)) for score in task.scores]
    return line_chart(task.score_title, [line for line in series if line.points])


def _rate_chart(history: History) -> Sheet:
    total = history.planned_steps
    rate = rate_by_step(history.recipe, total)
    points = [(float(step), rate(step)) for step in range(1, total + 1, max(1, total // 300))]
    used = history.rates()
    done = [(float(step), rate) for step, rate in _thinned(used)]
    return line_chart(
        "Learning rate",
        [Series("planned", points, is_dashed=True, colour=7), Series("so far", done, colour=0)],
        starts_at_zero=True,
    )


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """About 300 of them, and every one beside which the value jumps."""
    every = max(1, len(points) // 300)
    largest = max((abs(value) for _, value in points), default=0.0)
    return [
        point
        for index, point in enumerate(points)
        if index % every == 0
        or index == len(points) - 1
        or any(
            abs(points[other][1] - point[1]) > 0.05 * largest
            for other in (index - 1, index + 1)
            if 0 <= other < len(points)
        )
    ]


def _grouped(history: History) -> list[list[dict[str, Any]]]:
    size = max(1, -(-len(history.steps) // _COLUMNS))
    return [history.steps[start : start + size] for start in range(0, len(history.steps), size)]


def _step_time_chart(history: History) -> Sheet:
    groups = _grouped(history)
    shown = [
        phase for phase in PHASES if history.totals.get(phase, 0.0) > 0.002 * sum(history.totals.values())
    ]
    layers = [
        (phase, [1000 * sum(step["phases"].get(phase, 0.0) for step in g) / len(g) for g in groups])
        for phase in shown
    ]
    x = [float(group[len(group) // 2]["step"]) for group in groups]
    return stack_chart("What a step's time is made of, milliseconds", x, layers)


def _speed_chart(history: History) -> Sheet:
    groups = [group for group in _grouped(history) if all("targets" in step for step in group)]
    points = [
        (
            float(group[len(group) // 2]["step"]),
            sum(step["targets"] for step in group) / max(1e-9, sum(step["seconds"] for step in group)),
        )
        for group in groups
    ]
    unit = history.unit
    title = f"{unit[0].upper()}{unit[1:]} a second"
    return line_chart(title, [Series(f"{unit.split()[-1]}/s", points, colour=2)], starts_at_zero=True)


def _traffic_chart(history: History) -> Sheet:
    """Megabits per second at each host's cluster interface."""
    series = [
        _over_time(host, [(at, 8e-6 * (state.received + state.sent) / 2) for at, state in states])
        for host, states in _states_by_host(history).items()
    ]
    return line_chart(
        "Traffic at the network interface, Mbit/s each way", series, x_label="minutes", starts_at_zero=True
    )


def _use_chart(history: History) -> Sheet:
    """How busy each host's GPUs are, or its processors if it has no GPU."""
    by_host = _states_by_host(history)
    series = [
        _over_time(host, [(at, 100 * state.busy) for at, state in states if state.busy is not None])
        for host, states in by_host.items()
    ]
    has_gpus = any(state.gpus for states in by_host.values() for _, state in states)
    title = "How busy the GPUs are, %" if has_gpus else "How busy the processors are, %"
    return line_chart(title, series, x_label="minutes", starts_at_zero=True)


def _over_time(host: str, points: Sequence[tuple[float, float]]) -> Series:
    """A host's curve over minutes, with gaps while it was not sampled because nothing trained there."""
    return Series(host, points, longest_gap=FRESH_S / 60)


def _states_by_host(history: History) -> dict[str, list[tuple[float, HostLoad]]]:
    """What each host did, with the minutes since the first sample."""
    found: dict[str, list[tuple[float, HostLoad]]] = {}
    if not history.host_samples:
        return found
    first = history.host_samples[0]["time"]
    for sample in history.host_samples:
        if sample.get("seconds"):
            state = host_state(sample)
            found.setdefault(state.host, []).append(((sample["time"] - first) / 60, state))
    return found
