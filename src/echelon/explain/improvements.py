"""What would have made a run faster or cheaper, each with the gain that its own measurements predict, best first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from echelon.explain.cost import PlannedExchange, reached_flops
from echelon.explain.diagnosis import StepTime, find_straggler
from echelon.explain.history import History
from echelon.explain.what_if import Replanning

_WORTH = 0.02
"""Share of the run's time that something must save to be worth a line."""
_FASTER_LINE = 10
"""How many times as fast a line is advised; what is waited for is bytes over its rate."""
_EXCHANGES: dict[PlannedExchange, str] = {
    "compressed": "exchange gradients in 16 bits",
    "low_rank": "exchange low-rank gradients",
    "local": "let workers take local steps and synchronise rarely",
}


@dataclass(frozen=True)
class Improvement:
    """One piece of advice."""

    name: str
    advice: str
    saved: float
    """Share of the run's time."""
    caveat: str = ""


def find_improvements(
    history: History, time: StepTime, replanning: Replanning | None, *, has_overfitted: bool
) -> list[Improvement]:
    """All improvements worth making."""
    total = history.training_seconds or 1.0
    stepping = len(history.steps) * history.seconds_per_step / total
    found = [
        *_about_the_network(history, time, replanning, stepping),
        *_about_the_devices(history, time, replanning, stepping),
        *_about_the_schedule(history, total, has_overfitted=has_overfitted),
    ]
    return sorted((entry for entry in found if entry.saved >= _WORTH), key=lambda entry: -entry.saved)


def _about_the_network(
    history: History, time: StepTime, replanning: Replanning | None, stepping: float
) -> list[Improvement]:
    if history.num_hosts == 1 or not time.seconds:
        return []
    found = [
        Improvement(
            "faster network",
            "a link ten times as fast",
            (1 - 1 / _FASTER_LINE) * time.network / time.seconds * stepping,
        )
    ]
    if replanning is None:
        return found
    now = replanning.seconds()
    waiting = (time.network + time.stragglers) / time.seconds  # no exchange saves more than that
    for exchange, advice in _EXCHANGES.items():
        if exchange != replanning.exchange:
            saved = min(waiting, max(0.0, 1 - replanning.seconds(exchange=exchange) / now)) * stepping
            found.append(Improvement(exchange, advice, saved, "changes the result slightly"))
    return found


def _about_the_devices(
    history: History, time: StepTime, replanning: Replanning | None, stepping: float
) -> list[Improvement]:
    if not time.seconds:
        return []
    found = [
        Improvement(
            "input",
            "load the input faster (faster disk, more cores)",
            time.input / time.seconds * stepping,
        )
    ]
    straggler = find_straggler(history)
    if straggler is not None:
        worker = straggler.worker
        advice = f"remove worker {worker.rank} on {worker.host or '?'}, or make it as fast as the others"
        found.append(Improvement("straggler", advice, time.stragglers / time.seconds * stepping))
    if history.recipe.train.precision == "float32" and replanning is not None:
        saved = _saved_by_half(replanning) * time.compute / time.seconds * stepping
        advice = 'train.precision = "bf16"'
        found.append(Improvement("precision", advice, saved, "if the hardware multiplies in bfloat16"))
    slots, size = history.recipe.train.slots, len(history.workers)
    if slots % size:
        busiest = -(-slots // size)
        saved = (1 - slots / size / busiest) * time.compute / time.seconds * stepping
        advice = f"train.slots = {busiest * size}, which {size} workers can share evenly"
        found.append(Improvement("slots", advice, saved, "changes the result, because steps differ"))
    return found


def _saved_by_half(replanning: Replanning) -> float:
    """The share of computing that 16-bit products save, by what the catalogue says that this device reaches."""
    cluster, workload = replanning.cluster, replanning.workload
    half = replace(workload, number_format="half")
    return 1 - reached_flops(workload, cluster) / reached_flops(half, cluster)


def _about_the_schedule(history: History, total: float, *, has_overfitted: bool) -> list[Improvement]:
    found = []
    scoring = history.totals.get("evaluation", 0.0) / total
    if len(history.valid) > 1:
        found.append(Improvement("scoring", "score half as often (evaluate.every)", scoring / 2))
    saving = history.totals.get("checkpoint", 0.0) / total
    found.append(Improvement("checkpoints", "save half as often (checkpoint.every)", saving / 2))
    scored = [record for record in history.valid if record.get("loss") is not None]
    if has_overfitted and scored:
        best = min(scored, key=lambda record: record["loss"])["step"]
        saved = 1 - best / max(1, len(history.steps))
        found.append(
            Improvement("early stop", f"stop at step {best:,}, after which it overfitted (early_stop)", saved)
        )
    return found
