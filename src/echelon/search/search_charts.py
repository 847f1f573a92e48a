"""What a search has found, as charts: settings and results on parallel axes, results by step, and importance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from echelon.explain.charts import Series, line_chart, share_chart, show_number
from echelon.explain.sheet import Mark, Path, Sheet, Words
from echelon.search.trials import Trial
from echelon.search.varied_keys import ListedValues, VariedKey, short_names, show_value

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 80, 76, 34
_BEST_COLOUR, _FINAL_COLOUR, _OTHER_COLOUR = 1, 0, 7
_LONGEST_LABEL = 14
_MOST_LABELS = 8


@dataclass(frozen=True)
class ParallelAxis:
    """One of several upright axes."""

    name: str
    ends: tuple[float, float]
    """Values at the bottom and at the top."""
    is_log: bool
    labels: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        """How far up a value is, from 0 to 1."""
        low, high = self.ends
        if low == high:
            return 0.5
        if self.is_log:
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)


def search_charts(
    varied: Sequence[VariedKey],
    trials: Sequence[Trial],
    best: Trial | None,
    metric: str,
    shares: Mapping[str, float] | None,
    *,
    lower_is_better: bool,
) -> list[Sheet]:
    """The charts of a search, as far as there are results for them."""
    alive = [trial for trial in trials if trial.results and trial.failure is None]
    if best is None:
        return []
    charts = [parallel_chart(varied, alive, best, metric, lower_is_better=lower_is_better)]
    if shares:
        names = short_names(list(shares))
        where = f"at step {best.rungs[0]:,}" if len(best.rungs) > 1 else "at the end"
        parts = [(names[key], share) for key, share in shares.items()]
        charts.append(share_chart(f"What decides the {metric} {where}", parts))
    if len(best.rungs) > 1:
        charts.append(line_chart(f"Best validation {metric} at each comparison", _result_series(alive, best)))
    return charts


def _result_series(alive: Sequence[Trial], best: Trial) -> list[Series]:
    """The best first, then the others from the furthest to the first that were stopped."""
    ordered = sorted(alive, key=lambda trial: (trial is not best, -trial.furthest, trial.number))
    return [
        Series(
            trial.name, [(float(result.step), result.value) for _, result in sorted(trial.results.items())]
        )
        for trial in ordered
    ]


def parallel_chart(
    varied: Sequence[VariedKey], alive: Sequence[Trial], best: Trial, metric: str, *, lower_is_better: bool
) -> Sheet:
    """A line for each trial across one axis for each key, its first result and the step it has reached."""
    axes = [*_key_axes(varied), *_result_axes(alive, metric, lower_is_better=lower_is_better)]
    gap = (_WIDTH - _LEFT - _RIGHT) / (len(axes) - 1)
    across = [_LEFT + gap * number for number in range(len(axes))]
    marks: list[Mark] = [Words(16, 22, "Settings and results", "ink", size=15, is_bold=True)]
    marks.append(Words(16, 40, "bold: the best; blue: trained to the end; grey: stopped earlier", size=11))
    marks += [Path(((x, _height(0)), (x, _height(1))), None, 1.5) for x in across]
    for trial in sorted(alive, key=lambda each: (each is best, each.furthest)):
        places = _places(varied, trial)
        points = tuple((x, _height(axis.share(at))) for x, axis, at in zip(across, axes, places, strict=True))
        is_final = trial.furthest == len(trial.rungs) - 1
        colour = _BEST_COLOUR if trial is best else _FINAL_COLOUR if is_final else _OTHER_COLOUR
        marks.append(Path(points, colour, width=3.5 if trial is best else 1.2))
    for x, axis in zip(across, axes, strict=True):
        marks += _labels(x, axis)  # on top of the lines
    settings = ", ".join(f"{key} {show_value(value)}" for key, value in best.values.items())
    words = f"The best of {len(alive)} trials is {best.name} with {settings}."
    return Sheet(_WIDTH, _HEIGHT, tuple(marks), "Settings and results", words)


def _key_axes(varied: Sequence[VariedKey]) -> list[ParallelAxis]:
    names = short_names([each.key for each in varied])
    axes = list[ParallelAxis]()
    for each in varied:
        if isinstance(each, ListedValues):
            labels = [(float(number), show_value(value)) for number, value in enumerate(each.values)]
            axes.append(ParallelAxis(names[each.key], (0.0, len(labels) - 1.0), False, labels))
        else:
            middle = math.sqrt(each.low * each.high) if each.is_log else (each.low + each.high) / 2
            labels = [(float(value), show_number(value)) for value in (each.low, middle, each.high)]
            axes.append(ParallelAxis(names[each.key], (each.low, each.high), each.is_log, labels))
    return axes


def _result_axes(alive: Sequence[Trial], metric: str, *, lower_is_better: bool) -> list[ParallelAxis]:
    """The first result, the better the higher, and the last step."""
    values = [trial.results[0].value for trial in alive]
    ends = (max(values), min(values)) if lower_is_better else (min(values), max(values))
    steps = sorted({trial.step for trial in alive})
    at = "first comparison" if any(len(trial.rungs) > 1 for trial in alive) else "end"
    return [
        ParallelAxis(
            f"{metric}, {at}", ends, False, [(value, show_number(value)) for value in dict.fromkeys(ends)]
        ),
        ParallelAxis(
            "steps", (0.0, float(steps[-1])), False, [(float(step), show_number(step)) for step in steps]
        ),
    ]


def _places(varied: Sequence[VariedKey], trial: Trial) -> list[float]:
    keys = [
        float(each.values.index(trial.values[each.key]))
        if isinstance(each, ListedValues)
        else trial.values[each.key]
        for each in varied
    ]
    return [*keys, trial.results[0].value, float(trial.step)]


def _labels(x: float, axis: ParallelAxis) -> list[Mark]:
    marks: list[Mark] = [Words(x, _TOP - 14, axis.name, "ink", "middle", 12)]
    every = math.ceil(len(axis.labels) / _MOST_LABELS)
    for value, label in list(axis.labels)[::every]:
        marks.append(Words(x + 5, _height(axis.share(value)) + 4, label[:_LONGEST_LABEL], "ink", size=11))
    return marks


def _height(share: float) -> float:
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)
