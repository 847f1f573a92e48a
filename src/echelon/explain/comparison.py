"""Runs side by side: what differs between them, the global batch first, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from echelon.explain.charts import Series, line_chart
from echelon.explain.curves import smooth
from echelon.explain.history import History
from echelon.explain.report import Report
from echelon.explain.sheet import Sheet
from echelon.explain.tables import markdown_table, render_table
from echelon.explain.units import show_bytes, show_count, show_duration, show_number, show_share, show_step
from echelon.explain.verdict import Verdict, find_verdict
from echelon.explain.verdict_table import verdict_table
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import RecipeDeclaration, StepSize, find_task, less_is_better
from echelon.recipe.toml import flat_settings

_FIRST_KEYS = ("train.slots", "train.steps", "train.precision")
"""What decides the result and is asked for first, after the global batch."""
_EXCHANGE = "network, or exchange on one machine"


@dataclass(frozen=True)
class Comparison:
    """Runs beside the first of them."""

    names: list[str]
    differences: list[tuple[str, list[str]]]
    """What differs, and its value in each run."""
    measures: list[tuple[str, list[str]]]
    sentences: list[str]
    charts: dict[str, Sheet]
    values: list[dict[str, Any]]
    """Each run's report, for programs."""
    verdict: Verdict | str
    """Whether their scores differ; or why nothing can be said."""

    def to_json(self) -> dict[str, Any]:
        return {
            "runs": self.names,
            "verdict": {"problem": self.verdict}
            if isinstance(self.verdict, str)
            else {**self.verdict.to_json(), "table": verdict_table(self.verdict)},
            "differences": dict(self.differences),
            "sentences": self.sentences,
            "reports": self.values,
        }


def compare_reports(reports: Sequence[Report], set_name: str = "test") -> Comparison:
    """Put reports side by side; the first is what the others are compared with, the scores on a set of that name."""
    names = _names(reports)
    runs = [report.history.run for report in reports]
    return Comparison(
        names=names,
        differences=find_differences(reports),
        measures=_measures(reports),
        sentences=_sentences(reports, names),
        charts=_charts(reports, names),
        values=[report.to_json() for report in reports],
        verdict=find_verdict(list(zip(names, runs, strict=True)), set_name),
    )


def _names(reports: Sequence[Report]) -> list[str]:
    """The folders' names; whole paths if two names are the same."""
    short = [report.history.run.name for report in reports]
    return short if len(set(short)) == len(short) else [str(report.history.run.path) for report in reports]


def find_differences(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    """The global batch, then everything else in which the recipes or the clusters differ."""
    facts = [_facts(report) for report in reports]
    keys = list(dict.fromkeys(key for each in facts for key in each))
    keys.sort(key=lambda key: _FIRST_KEYS.index(key) if key in _FIRST_KEYS else len(_FIRST_KEYS))
    rows = [(key, [each.get(key, "-") for each in facts]) for key in keys]
    batch = ("global batch", [_format_batch(report) for report in reports])
    return [(key, values) for key, values in [batch, *rows] if len(set(values)) > 1]


def _facts(report: Report) -> dict[str, str]:
    history = report.history
    cluster = {
        "workers": ", then ".join(
            [*(str(workers) for workers, _ in history.earlier_sizes), str(history.size)]
        ),
        "hosts": str(history.num_hosts),
        "device": str(history.facts.get("device", "?")),
        "exchange": str(history.facts.get("exchange", "?")),
    }
    settings = {key: value for key, value in flat_settings(history.recipe).items() if value != "None"}
    task: RecipeDeclaration = find_task(history.recipe.task)
    for key in ("name", "train.workers", task.batch(history.recipe).key):  # told by other rows
        settings.pop(key, None)
    return cluster | settings


def _measures(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    def row(name: str, show: Any) -> tuple[str, list[str]]:
        return name, [show(report) for report in reports]

    units = {report.history.unit for report in reports}
    unit = units.pop() if len(units) == 1 else "targets"
    exchange = {report.case.time.exchange_label for report in reports}
    metrics = {report.history.metric[0] for report in reports}
    metric = metrics.pop() if len(metrics) == 1 else "score"

    def scored(history: History, value: float | None) -> str:
        return show_number(value) + (
            f" {history.metric[0]}" if metric == "score" and value is not None else ""
        )

    return [
        row("global batch", _format_batch),
        row("steps", lambda r: show_count(len(r.history.steps))),
        row(f"{unit} per step, mean", lambda r: show_count(r.history.targets_per_step)),
        row("time", lambda r: show_duration(r.history.training_seconds)),
        row("starting", lambda r: show_duration(r.history.account.starting)),
        row("steps, scoring and saving", lambda r: show_duration(r.history.loop_seconds)),
        row("time per step", lambda r: show_step(r.history.pace)),
        row("time per step, p99", lambda r: show_step(r.history.percentile(0.99))),
        row(f"{unit}/s", lambda r: show_count(r.history.targets_per_second)),
        row("bound by", lambda r: r.case.bound),
        row(exchange.pop() if len(exchange) == 1 else _EXCHANGE, lambda r: _share(r, r.case.time.network)),
        row("waiting for data", lambda r: _share(r, r.case.time.input)),
        row("scoring", lambda r: show_share(r.history.share_of("evaluation"))),
        row("checkpoints", lambda r: show_share(r.history.share_of("checkpoint"))),
        row("checkpoints written", lambda r: str(len(r.history.checkpoints))),
        row(
            "network bytes per step",
            lambda r: (
                "-"
                if r.case.traffic.measured is None or r.history.num_hosts == 1
                else show_bytes(r.case.traffic.measured)
            ),
        ),
        row("training loss at the end", lambda r: show_number(r.history.last_loss)),
        row(f"best validation {metric}", lambda r: scored(r.history, r.history.best_score())),
        row(
            f"test {metric}",
            lambda r: scored(
                r.history, r.history.test.metrics.get(r.history.metric[1]) if r.history.test else None
            ),
        ),
        row("cost", lambda r: next(a.verdict for a in r.answers if a.key == "cost")),
    ]


def _share(report: Report, seconds: float) -> str:
    total = report.case.time.seconds
    return show_share(seconds / total) if total else "-"


def _sentences(reports: Sequence[Report], names: Sequence[str]) -> list[str]:
    """Each run compared with the first, in sentences."""
    first, sentences = reports[0], _tell_scores(reports, names)
    if not _have_same_batch(reports):
        sentences.append(
            "The global batch differs, so steps are not the same work: compare speeds, not steps."
        )
    else:
        sentences.append("The global batch is the same, so steps can be compared one by one.")
    for report, name in zip(reports[1:], names[1:], strict=True):
        sentences += _beside(report, name, first, names[0])
    return sentences


def _tell_scores(reports: Sequence[Report], names: Sequence[str]) -> list[str]:
    """Which run is the best by its score on the test set, or on the validation set if not all have one."""
    if len({report.history.metric for report in reports}) > 1:
        return []
    name, key = reports[0].history.metric
    tests = [report.history.test.metrics.get(key) if report.history.test else None for report in reports]
    kind, found = "test", tests
    if None in tests:
        kind, found = "validation", [report.history.best_score() for report in reports]
    scores = [score for score in found if score is not None]
    if len(scores) < len(reports):
        return []
    best = min(scores) if less_is_better(key) else max(scores)
    if len(set(scores)) == 1:
        return [f"All have the same {kind} {name}, {best:.2f}."]
    winners = [run for run, score in zip(names, scores, strict=True) if score == best]
    others = [f"{score:.2f} ({run})" for run, score in zip(names, scores, strict=True) if score != best]
    verb = "has" if len(winners) == 1 else "have"
    return [
        f"{' and '.join(winners)} {verb} the best {kind} {name}: {best:.2f}, against {', '.join(others)}."
    ]


def _beside(report: Report, name: str, first: Report, first_name: str) -> list[str]:
    """One run compared with the first: its time, if it did the same work, and its speed."""
    ours, theirs = report.history, first.history
    found = []
    if _have_same_batch([report, first]) and len(ours.steps) == len(theirs.steps) and theirs.loop_seconds:
        times = ours.loop_seconds / theirs.loop_seconds
        found.append(
            f"{name} takes {times:.2f} times as long as {first_name} for the same steps: "
            f"{show_duration(ours.loop_seconds)} against {show_duration(theirs.loop_seconds)}, scoring and saving "
            "included, starting left out."
        )
    if not ours.targets_per_second or not theirs.targets_per_second or ours.unit != theirs.unit:
        return found
    faster = ours.targets_per_second / theirs.targets_per_second
    words = (
        f"Between scoring and saving, {name} processes {faster:.2f} times as many {theirs.unit} per second as "
        f"{first_name}"
    )
    more = len(ours.workers) / len(theirs.workers)
    if more > 1:
        words += f" with {more:g} times as many workers: {show_share(faster / more)} efficient"
    is_measured = report.case.is_time_measured and first.case.is_time_measured
    if is_measured and report.case.bound != first.case.bound:
        words += f"; it is bound by {report.case.bound}, {first_name} by {first.case.bound}"
    return [*found, f"{words}."]


def _have_same_batch(reports: Sequence[Report]) -> bool:
    """By their recipes: what is counted differs from step to step, so its mean does with the number of steps."""
    given = {_given_batch(report.history.recipe) for report in reports}
    if None in given:
        return len({round(report.history.targets_per_step) for report in reports}) == 1
    return len(given) == 1


def _format_batch(report: Report) -> str:
    """As the recipe gives it: what is counted is less, by what padding and the ends of epochs leave out."""
    given = _given_batch(report.history.recipe)
    if given is None:
        return f"{show_count(report.history.targets_per_step)} {report.history.unit} on average"
    return f"{'up to ' if given.is_limit else ''}{given.size:,} {given.unit}"


def _given_batch(recipe: Recipe) -> StepSize | None:
    """The size of a step; None if it is not in the recipe because training was to find it."""
    task: RecipeDeclaration = find_task(recipe.task)
    return None if recipe.train.is_batch_auto else task.batch(recipe)


def _charts(reports: Sequence[Report], names: Sequence[str]) -> dict[str, Sheet]:
    losses, paces = [], []
    for report, name in zip(reports, names, strict=True):
        history = report.history
        losses.append(_smoothed(name, *history.losses()))
        times = [1000 * float(step["seconds"]) for step in history.steps]
        paces.append(_smoothed(name, [float(step["step"]) for step in history.steps], times))
    return {
        "loss": line_chart("Training loss", losses),
        "step_time": line_chart("Time of a step, milliseconds", paces, starts_at_zero=True),
    }


def _smoothed(name: str, steps: Sequence[float], values: Sequence[float]) -> Series:
    smoothed = map(float, smooth(values)) if values else []
    return Series(name, list(zip(steps, smoothed, strict=True)))


def comparison_text(comparison: Comparison, width: int | None = None) -> str:
    """Tables and sentences for a terminal; tables fit `width`."""
    return "\n\n".join(_parts(comparison, lambda rows: render_table(rows, width)))


def comparison_markdown(comparison: Comparison) -> str:
    return (
        "# " + " / ".join(comparison.names) + "\n\n" + "\n\n".join(_parts(comparison, markdown_table)) + "\n"
    )


def _parts(comparison: Comparison, render: Any) -> list[str]:
    heading = ["", *comparison.names]
    differences = [["WHAT DIFFERS", *comparison.names]] + [
        [key, *values] for key, values in comparison.differences
    ]
    measures = [heading] + [[name, *values] for name, values in comparison.measures]
    told = render(differences) if comparison.differences else "The recipes and clusters do not differ."
    parts = [told, render(measures), *comparison.sentences]
    if isinstance(comparison.verdict, str):
        return [*parts, comparison.verdict]
    return [*parts, render(verdict_table(comparison.verdict)), *comparison.verdict.sentences]
