"""A run with parameter servers: each process's progress, staleness and traffic over time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from echelon.explain.charts import Series, line_chart
from echelon.explain.history import History, Worker
from echelon.explain.sheet import Sheet
from echelon.explain.units import show_bytes, show_count
from echelon.monitor.records import is_number


@dataclass(frozen=True)
class Process:
    """A worker or a server, from its records."""

    name: str
    role: str
    steps: int
    """Of a worker: its local steps, those it computed or had a part in; of a server: updates."""
    mean_staleness: float | None
    most_stale: int | None
    dropped: int
    """Gradients that came too late for their step."""
    sent: dict[str, int]
    """Bytes in all, by receiver."""


def find_processes(history: History) -> list[Process]:
    """All processes of a run with servers; none if it has no server."""
    if not history.servers:
        return []
    everyone = sorted([*history.workers, *history.servers], key=lambda worker: worker.rank)
    names = {str(worker.rank): _name(worker) for worker in everyone}
    return [_process(worker, names) for worker in everyone]


def _name(worker: Worker) -> str:
    return f"{worker.facts.get('role', 'worker')} {worker.rank}"


def _process(worker: Worker, names: dict[str, str]) -> Process:
    staleness = [int(step["staleness"]) for step in worker.steps if isinstance(step.get("staleness"), int)]
    sent: Counter[str] = Counter()
    for step in worker.steps:
        for rank, count in _sent(step).items():
            sent[names.get(rank, rank)] += count
    return Process(
        name=_name(worker),
        role=str(worker.facts.get("role", "worker")),
        steps=len(worker.steps),
        mean_staleness=sum(staleness) / len(staleness) if staleness else None,
        most_stale=max(staleness, default=None),
        dropped=int(max((y for _, y in _points(worker, "step", "dropped")), default=0)),
        sent=dict(sent),
    )


def _sent(step: dict[str, Any]) -> dict[str, int]:
    sent = step.get("sent_to")
    if not isinstance(sent, dict):
        return {}
    return {str(rank): int(count) for rank, count in sent.items() if is_number(count)}


def draw_serving(history: History) -> dict[str, Sheet]:
    """Charts of a run with servers; none if it has no server."""
    if not history.servers:
        return {}
    staleness = [Series(_name(worker), _points(worker, "step", "staleness")) for worker in history.workers]
    return {
        "staleness": line_chart(
            "Staleness: updates by others between a worker's weights and its own",
            staleness,
            starts_at_zero=True,
        ),
        "progress": _progress_chart(history),
    }


def _progress_chart(history: History) -> Sheet:
    """Steps over time: the global one, of the first server, and every worker's own."""
    server, *_ = history.servers
    lines = {"global step": _points(server, "time", "global_step")}
    for worker in history.workers:
        lines[f"{_name(worker)}, local step"] = _points(worker, "time", "local_step")
    begin = min((points[0][0] for points in lines.values() if points), default=0.0)
    series = [Series(name, [(x - begin, y) for x, y in points]) for name, points in lines.items()]
    return line_chart("Global and local steps", series, x_label="seconds", starts_at_zero=True)


def _points(worker: Worker, x: str, y: str) -> list[tuple[float, float]]:
    """Points from the steps whose records have both values as numbers."""
    both = ((step.get(x), step.get(y)) for step in worker.steps)
    return [(float(one), float(two)) for one, two in both if is_number(one) and is_number(two)]


def traffic_table(processes: list[Process]) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Heading and rows: what each process did, and the bytes that it sent to each other."""
    names = [process.name for process in processes]
    heading = ["", "steps", "mean staleness", "most", "too late", *(f"to {name}" for name in names)]
    rows = []
    for process in processes:
        stale = "-" if process.mean_staleness is None else f"{process.mean_staleness:.2f}"
        most = "-" if process.most_stale is None else str(process.most_stale)
        sent = [show_bytes(process.sent[name]) if name in process.sent else "-" for name in names]
        rows.append((process.name, [show_count(process.steps), stale, most, str(process.dropped), *sent]))
    return heading, rows
