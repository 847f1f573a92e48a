"""`plan`: what a recipe would take on clusters that are not rented yet, side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from echelon.errors import UserError
from echelon.explain.charts import Series, line_chart
from echelon.explain.clusters import Cluster
from echelon.explain.cost import (
    EXCHANGES,
    PlannedExchange,
    Prediction,
    checkpoint_seconds,
    is_exact,
    memory_bytes,
    predict,
)
from echelon.explain.profile import Profile
from echelon.explain.sheet import Sheet
from echelon.explain.tables import render_table
from echelon.explain.text_description import AUTO_BATCH
from echelon.explain.uncertainty import Cause, Estimate
from echelon.explain.units import format_speed, show_bytes, show_hours, show_step
from echelon.explain.workload import Workload
from echelon.recipe.exchanges import WORTH_IT, most_exact, names_of

_MOST_POINTS = 200
_WIDE = 0.3
"""Width of a range, relative to what is expected, from which it is worth measuring more."""
_WORTH_MEASURING = 0.8
"""A measurement is worth it if it leaves at most this share of the range."""


@dataclass(frozen=True)
class ClusterPlan:
    """One row of the answer; the keys of `plan --json`."""

    name: str
    hosts: int
    training_hosts: int
    """How many of these train; the others stand by, as `exchange.hosts` says, or "auto" if more would be slower."""
    workers: int
    seconds_per_step: float
    seconds_range: tuple[float, float]
    """Holds the step's time nine times of ten."""
    range_due_to: Cause
    """The factor that widens the range most."""
    narrowed_range: tuple[float, float]
    """The range if that were measured."""
    device: str
    objects_per_second: float
    unit: str
    bound: str
    bytes_per_step: float
    """Received, and sent, by each host's card."""
    efficiency: float
    hours: float | None
    """None if the recipe's steps are not known before its data are prepared."""
    hours_range: tuple[float, float] | None
    cost: float | None
    cost_range: tuple[float, float] | None
    memory_bytes: float
    fits: bool | None
    """Whether that is less than the device has; None if the device's memory is not known."""
    exchange: PlannedExchange
    """What training uses: the recipe's, or what "auto" makes of it here."""
    best_exchange: PlannedExchange
    """The fastest, exact or not."""
    exchanges: dict[str, dict[str, Any]]
    """Seconds and bytes of a step by exchange."""
    breakdown: dict[str, float]
    idle_workers: int
    """Workers without a slot."""


def plan_cluster(workload: Workload, cluster: Cluster, profile: Profile | None = None) -> ClusterPlan:
    """A recipe's workload on one cluster."""
    training = cluster.resized(min(cluster.hosts, workload.settings.hosts or cluster.hosts))
    if workload.exchange == "auto":  # which sums host by host if hosts have several workers
        workload = replace(workload, settings=workload.settings.model_copy(update={"hierarchical": True}))
    predictions = {name: predict(workload, training, name, profile) for name in EXCHANGES}
    chosen, training = choose_exchange(workload, training, predictions, profile)
    best = min(predictions.values(), key=lambda found: found.seconds.expected)
    if best.seconds.expected > 0.98 * chosen.seconds.expected:
        best = chosen  # an inexact exchange must be clearly faster to be worth it
    hours = _hours(workload, chosen, training.workers)
    needed, held = memory_bytes(workload, training.workers), cluster.device.memory_bytes
    return ClusterPlan(
        name=cluster.name,
        hosts=cluster.hosts,
        training_hosts=training.hosts,
        workers=cluster.workers,
        seconds_per_step=chosen.seconds.expected,
        seconds_range=(chosen.seconds.low, chosen.seconds.high),
        range_due_to=chosen.range.cause,
        narrowed_range=(chosen.range.narrowed.low, chosen.range.narrowed.high),
        device=cluster.device.name,
        objects_per_second=workload.objects / chosen.seconds.expected,
        unit=workload.unit,
        bound=chosen.cost.bound,
        bytes_per_step=chosen.bytes_per_step,
        efficiency=chosen.efficiency * training.workers / cluster.workers,
        hours=hours.expected if hours else None,
        hours_range=(hours.low, hours.high) if hours else None,
        cost=_cost(cluster, hours.expected if hours else None),
        cost_range=_cost_range(cluster, hours),
        memory_bytes=needed,
        fits=None if held is None else needed < held,
        exchange=chosen.exchange,
        best_exchange=best.exchange,
        exchanges={name: _exchange_facts(found, workload) for name, found in predictions.items()},
        breakdown={name: value for name, value in asdict(chosen.cost).items() if value},
        idle_workers=max(0, training.workers - workload.slots),
    )


def choose_exchange(
    workload: Workload,
    cluster: Cluster,
    predictions: Mapping[PlannedExchange, Prediction],
    profile: Profile | None,
) -> tuple[Prediction, Cluster]:
    """The recipe's exchange, or what "auto" takes here; on all hosts, or on one if "auto" finds more do not pay."""
    if workload.exchange != "auto":
        return predictions[workload.exchange], cluster
    if cluster.hosts == 1:
        return predictions["all_reduce"], cluster
    found = most_exact({name: predictions[name].seconds.expected for name in names_of(workload.allowed)})
    alone = predict(workload, cluster.resized(1), found, profile)
    if predictions[found].seconds.expected > WORTH_IT * alone.seconds.expected:
        return alone, cluster.resized(1)
    return predictions[found], cluster


def _hours(workload: Workload, prediction: Prediction, workers: int) -> Estimate | None:
    """Of the steps and the saves between them; how long scoring takes cannot be predicted."""
    if workload.steps is None:
        return None
    saves = workload.steps // workload.checkpoint_every if workload.checkpoint_every else 0
    pauses = saves * checkpoint_seconds(workload, workers)
    hours = (
        (workload.steps * seconds + pauses) / 3600
        for seconds in (prediction.seconds.expected, prediction.seconds.low, prediction.seconds.high)
    )
    return Estimate(*hours)


def _cost(cluster: Cluster, hours: float | None) -> float | None:
    return None if hours is None or cluster.hourly is None else hours * cluster.hosts * cluster.hourly


def _cost_range(cluster: Cluster, hours: Estimate | None) -> tuple[float, float] | None:
    if hours is None or cluster.hourly is None:
        return None
    return hours.low * cluster.hosts * cluster.hourly, hours.high * cluster.hosts * cluster.hourly


def _exchange_facts(prediction: Prediction, workload: Workload) -> dict[str, Any]:
    return {
        "seconds_per_step": prediction.seconds.expected,
        "seconds_range": [prediction.seconds.low, prediction.seconds.high],
        "bytes_per_step": prediction.bytes_per_step,
        "efficiency": prediction.efficiency,
        "algorithm": prediction.algorithm,
        "is_exact": is_exact(prediction.exchange, workload.settings),
    }


def format_plan(
    plans: Sequence[ClusterPlan], workload: Workload, is_profiled: bool, width: int | None = None
) -> str:
    """The table, fitted to `width`, and notes on it."""
    rows = [
        (
            "CLUSTER",
            "STEP",
            "90% RANGE",
            "SPEED",
            "BOUND BY",
            "TRAFFIC/STEP",
            "EFFICIENCY",
            "TIME",
            "COST",
            "MEMORY",
            "BEST",
        )
    ]
    rows += [
        (
            plan.name,
            show_step(plan.seconds_per_step),
            f"{show_step(plan.seconds_range[0])} - {show_step(plan.seconds_range[1])}",
            format_speed(plan.objects_per_second, plan.unit),
            plan.bound,
            show_bytes(plan.bytes_per_step) if plan.training_hosts > 1 else "-",
            f"{plan.efficiency:.0%}",
            "?" if plan.hours is None else show_hours(plan.hours),
            "?" if plan.cost is None else f"${plan.cost:,.2f}",
            show_bytes(plan.memory_bytes) + ("" if plan.fits is not False else " (too much)"),
            plan.best_exchange,
        )
        for plan in plans
    ]
    return "\n".join([render_table(rows, width), "", *_notes(plans, workload, is_profiled)])


def _notes(plans: Sequence[ClusterPlan], workload: Workload, is_profiled: bool) -> list[str]:
    basis = "a profile measured on real hardware" if is_profiled else "data sheets"
    notes = [
        f"{workload.name}: {workload.training_flops:.3g} FLOPs and {show_bytes(workload.gradient_bytes)} of gradients "
        f"a step. Computed from {basis}."
    ]
    if workload.assumed_tokens is not None:
        notes.append(f"{workload.name}: {AUTO_BATCH} at most {workload.assumed_tokens:,} tokens a step.")
    for plan in plans:
        if plan.idle_workers:
            notes.append(
                f"{plan.name}: {plan.idle_workers} of {plan.workers} workers have nothing to do, because a step has "
                f"{workload.slots} slots (train.slots)."
            )
        if plan.training_hosts < plan.hosts:
            notes.append(
                f"{plan.name}: {plan.training_hosts} of {plan.hosts} hosts train, the others stand by."
            )
        best = plan.exchanges[plan.best_exchange]
        if plan.best_exchange != plan.exchange:
            faster = plan.seconds_per_step / best["seconds_per_step"]
            notes.append(
                f"{plan.name}: {plan.best_exchange} would be {faster:.1f} times as fast as {plan.exchange}"
                + ("." if best["is_exact"] else ", but changes the result.")
            )
        notes += [*_whole_run(plan), *_range_notes(plan)]
        if plan.hours is None:
            notes.append(
                f"{plan.name}: the time needs the number of steps; prepare the data, or set train.steps."
            )
    return list(dict.fromkeys(notes))


def _whole_run(plan: ClusterPlan) -> list[str]:
    """The range of what a decision is about: the time of the whole run, and its cost."""
    if plan.hours_range is None:
        return []
    text = f"{plan.name}: the run takes {' - '.join(map(show_hours, plan.hours_range))}"
    if plan.cost_range is not None:
        text += f" and costs {' - '.join(f'${cost:,.2f}' for cost in plan.cost_range)}"
    return [f"{text}, nine times out of ten."]


def _range_notes(plan: ClusterPlan) -> list[str]:
    """How to narrow a range that is too wide to decide by."""
    (low, high), (least, most) = plan.seconds_range, plan.narrowed_range
    if high - low < _WIDE * plan.seconds_per_step or most - least > _WORTH_MEASURING * (high - low):
        return []
    narrowed = f"would narrow {show_step(low)} - {show_step(high)} to {show_step(least)} - {show_step(most)}"
    if plan.range_due_to == "line":
        return [
            f"{plan.name}: the link rate is not known; the rate in the SPEC, as in '2x(2xV100, 10gbit)', or a "
            f"hostfile, whose network is measured, {narrowed}."
        ]
    where = "on this machine" if plan.name == "here" else f"with {plan.device} from `echelon benchmark`"
    flag = "--profile" if plan.name == "here" else "--use-profile FILE"
    return [f"{plan.name}: computing speed is taken from data sheets; {flag}, measured {where}, {narrowed}."]


@dataclass(frozen=True)
class SweepPoint:
    """A number of hosts on the scaling curve."""

    hosts: int
    workers: int
    seconds_per_step: dict[str, float]
    """By exchange."""
    speedup: dict[str, float]
    """Work a second against one worker alone, by exchange."""


def parse_sweep(text: str) -> list[int]:
    """Numbers of hosts from `hosts=1..1024` (doubling) or `hosts=1,2,3`."""
    match = re.fullmatch(r"hosts=(?:(\d+)\.\.(\d+)|(\d+(?:,\d+)*))", text)
    if match is None:
        raise UserError(f"--sweep {text!r}: write it as hosts=1..1024 or hosts=1,2,4")
    if match[3]:
        hosts = [int(number) for number in match[3].split(",")]
    else:
        first, last = int(match[1]), int(match[2])
        hosts = [first] if 1 <= first <= last else []
        while hosts and hosts[-1] * 2 <= last:
            hosts.append(hosts[-1] * 2)
        hosts += [last] if hosts and hosts[-1] < last else []
    if not hosts or min(hosts) < 1 or len(hosts) > _MOST_POINTS:
        raise UserError(
            f"--sweep {text!r}: numbers of hosts go from 1 upwards, and at most {_MOST_POINTS} of them"
        )
    return hosts


def sweep(
    workload: Workload, cluster: Cluster, hosts: Sequence[int], profile: Profile | None
) -> list[SweepPoint]:
    """The scaling curve of every exchange."""
    points = []
    for count in hosts:
        resized = cluster.resized(count)
        found = {name: predict(workload, resized, name, profile) for name in EXCHANGES}
        points.append(
            SweepPoint(
                count,
                resized.workers,
                {name: prediction.seconds.expected for name, prediction in found.items()},
                {name: resized.workers * prediction.efficiency for name, prediction in found.items()},
            )
        )
    return points


def sweep_chart(points: Sequence[SweepPoint], name: str) -> Sheet:
    """The curves, hosts doubling along the axis: the share of perfect scaling that is left."""
    series = [
        Series(
            exchange,
            [(math.log2(point.hosts), 100 * point.speedup[exchange] / point.workers) for point in points],
        )
        for exchange in EXCHANGES
    ]
    return line_chart(
        f"{name}: scaling efficiency, %",
        series,
        x_label="hosts",
        show_x=lambda power: f"{2**power:g}" if power == round(power) else "",
        starts_at_zero=True,
    )


def format_sweep(points: Sequence[SweepPoint], name: str, width: int | None = None) -> str:
    """The curves as a table, with bars for the exact exchange: a full one is work that is all useful."""
    rows = [("HOSTS", "WORKERS", *(exchange.upper() for exchange in EXCHANGES), "ALL_REDUCE, EFFICIENCY")]
    for point in points:
        efficiency = point.speedup["all_reduce"] / point.workers
        bar = f"{'█' * round(20 * efficiency):<20} {efficiency:.0%}"
        speedups = (f"{point.speedup[exchange]:.4g}x" for exchange in EXCHANGES)
        rows.append((str(point.hosts), str(point.workers), *speedups, bar))
    return "\n".join([f"{name}: how many times as fast as one worker", render_table(rows, width)])
