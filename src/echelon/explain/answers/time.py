"""Where the time went, what a step is, and whether the devices were used."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.explain.answers.case import NOT_MEASURED, Answer, Case
from echelon.explain.history import History
from echelon.explain.hosts import HostState, host_state
from echelon.explain.wording import show_bytes, show_count, show_duration, show_share, show_step
from echelon.monitor.records import is_number
from echelon.recipe.schema import Recipe, TranslationRecipe


def how_long(case: Case) -> Answer:
    history, taken = case.history, case.history.training_seconds
    parts = {part: seconds for part, seconds in history.account.parts().items() if seconds > 0}
    order = sorted(parts, key=lambda part: -parts[part])
    where = ", ".join(f"{PART_WORDS[part]} {show_share(history.share_of(part))}" for part in order[:3])
    evidence = [
        f"{PART_WORDS[part]}: {show_duration(parts[part])} ({show_share(history.share_of(part))})"
        for part in order
    ]
    if parts:
        evidence.append(f"together {show_duration(taken)}, all of the time but pauses")
    if len(history.starts) > 1:
        evidence.append(f"started {len(history.starts)} times")
    if history.pause_seconds >= 1:
        evidence.append(
            f"{show_duration(history.pause_seconds)} of pauses, in which nobody trained: between a stop and the next "
            "start, or because the machine slept"
        )
    state = "took" if history.outcome in ("finished", "stopped early") else "has taken"
    answer = f"It {state} {show_duration(taken)} for {show_count(len(history.steps))} steps"
    if history.pause_seconds >= 1:
        answer += f", and {show_duration(history.pause_seconds)} of pauses between"
    is_measured = any(history.totals.values())
    return Answer(
        "duration",
        "How long did it take, and where did the time go?",
        show_duration(taken),
        f"{answer}: {where}." if is_measured else f"{answer}; where the time went was not measured.",
        evidence,
    )


PART_WORDS = {
    "starting": "starting and loading",
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "communication": "waiting for other workers and the network",
    "optimiser": "optimiser",
    "checkpoint": "checkpoints",
    "evaluation": "scoring",
    "other": "other work between steps",
    "unaccounted": "not accounted for (records without phases, or lost with a killed worker)",
}


def what_is_a_step(case: Case) -> Answer:
    history, train = case.history, case.history.recipe.train
    targets = [step["targets"] for step in history.first.typical() if "targets" in step]
    mean_targets = sum(targets) / len(targets) if targets else 0
    workers = "1 worker" if history.size == 1 else f"{history.size} workers"
    return Answer(
        "step",
        "What is a step here, and how long is one?",
        show_step(history.seconds_per_step),
        f"A step is one update of the weights from {train.slots} slots with {show_count(mean_targets)} {history.unit} "
        f"together, shared out over {workers}; it takes {show_step(history.seconds_per_step)} on average.",
        [
            f"mean {show_step(history.seconds_per_step)}, p50 {show_step(history.percentile(0.5))}, "
            f"p99 {show_step(history.percentile(0.99))}, scoring and saving between steps left out",
            f"{show_count(mean_targets / history.seconds_per_step if history.seconds_per_step else 0)} "
            f"{history.unit} a second; {_batch_words(history.recipe)}",
        ],
    )


def _batch_words(recipe: Recipe) -> str:
    if isinstance(recipe, TranslationRecipe):
        return f"at most {show_count(recipe.train.batch_tokens)} tokens a step (train.batch_tokens)"
    return f"{show_count(recipe.train.batch_images)} pictures a step (train.batch_images)"


WELL_USED = 0.8


def were_devices_used(case: Case) -> Answer:
    history, time = case.history, case.time
    states = [host_state(sample) for sample in history.host_samples]
    has_gpus = any(state.gpus for state in states)
    question = f"Were the {'GPUs' if has_gpus else 'CPUs'} fully used, and by what measure?"
    used = None if has_gpus else _cpu_share(history)
    evidence = [*_flops_evidence(history), *_sampled_evidence(states)]
    if used is not None:
        evidence.append(f"the workers used {show_share(used)} of the processor time that they could have had")
    if not case.is_time_measured:
        return Answer("devices", question, "unknown", NOT_MEASURED, evidence)
    computing = (time.compute + time.optimiser) / time.seconds
    evidence.insert(0, f"{show_share(computing)} of a step is computing; the rest is waiting and overhead")
    if computing > WELL_USED and used is not None and used < WELL_USED:
        sentence = (
            f"No: they compute in {show_share(computing)} of a step's time, but had {show_share(used)} of their "
            "processors: other programs ran beside them, or a limit holds them back."
        )
        return Answer("devices", question, "no", sentence, evidence)
    if computing > WELL_USED:
        sentence = f"Yes: they compute in {show_share(computing)} of a step's time."
        return Answer("devices", question, "yes", sentence, evidence)
    waits = {name: value for name, value in time.parts().items() if name.startswith("waiting")}
    most = max(waits, key=lambda name: waits[name])
    sentence = (
        f"No: they compute in {show_share(computing)} of a step's time; {show_share(waits[most] / time.seconds)} "
        f"goes into {most}."
    )
    return Answer("devices", question, "no", sentence, evidence)


def _flops_evidence(history: History) -> list[str]:
    flops, peak = history.facts.get("flops_per_step"), _peak_flops(history)
    if not flops or not peak or not history.seconds_per_step:
        return []
    share = flops / history.seconds_per_step / peak
    return [
        f"{flops:.3g} FLOPs a step are {show_share(share)} of what matrix products reach here "
        f"({peak / 1e9:,.0f} GFLOP/s together): the strictest measure"
    ]


def _sampled_evidence(states: Sequence[HostState]) -> list[str]:
    """What the hosts' samples say, where they say it."""
    busy = [state.gpus_busy for state in states if state.gpus_busy is not None]
    heat = [state.celsius for state in states if state.celsius is not None]
    read = [state.disk_read for state in states if state.disk_read is not None]
    written = [state.disk_written for state in states if state.disk_written is not None]
    found = []
    if busy:
        share = show_share(sum(busy) / len(busy))
        found.append(f"the driver calls the GPUs {share} busy, which waiting for others counts as well")
    if heat:
        found.append(f"the hottest GPU had {max(heat):.0f} °C")
    if read and written:
        found.append(
            f"a host's disks read {show_bytes(sum(read) / len(read))} and wrote "
            f"{show_bytes(sum(written) / len(written))} a second on average"
        )
    return found


def _peak_flops(history: History) -> float | None:
    peaks = [worker.facts.get("peak_flops") for worker in history.workers]
    return sum(peaks) if all(peaks) else None  # type: ignore[arg-type]


def _cpu_share(history: History) -> float | None:
    """Of the processor time that workers could have had; None where it was not measured."""
    used = [
        (step["cpu"], sum(step["phases"].values()) * worker.facts.get("threads", 1))
        for worker in history.workers
        for step in worker.typical()
        if is_number(step.get("cpu"))
    ]
    total = sum(possible for _, possible in used)
    return min(1.0, sum(cpu for cpu, _ in used) / total) if total else None
