"""Where the time went, what a step is, and whether the devices were used."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from echelon.explain.answers.case import NOT_MEASURED, Answer, Case, is_too_short, note_of_steps
from echelon.explain.history import History
from echelon.explain.host_samples import HostLoad, host_state
from echelon.explain.stretches import Stretch
from echelon.explain.units import (
    show_bytes,
    show_count,
    show_duration,
    show_share,
    show_step,
    show_steps,
    show_workers,
)
from echelon.monitor.records import is_number
from echelon.recipe.schema import Recipe
from echelon.recipe.tasks import RecipeDeclaration, find_task


def how_long(case: Case) -> Answer:
    history, taken = case.history, case.history.training_seconds
    parts = {part: seconds for part, seconds in history.account.parts().items() if seconds > 0}
    order = sorted(parts, key=lambda part: -parts[part])
    where = ", ".join(f"{PART_WORDS[part]} {show_share(history.share_of(part))}" for part in order[:3])
    evidence = [
        f"{PART_WORDS[part]}{_COUNTED_IN.get(part, '')}: {show_duration(parts[part])} "
        f"({show_share(history.share_of(part))})"
        for part in order
    ]
    if parts:
        evidence.append(f"{show_duration(taken)} in all, without pauses")
    evidence += _format_restarts(history)
    if history.pause_seconds >= 1:
        evidence.append(
            f"{show_duration(history.pause_seconds)} of pauses without training: between a stop and the next "
            "launch, or because the machine slept"
        )
    state = "took" if history.is_complete else "has taken"
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


def _format_restarts(history: History) -> list[str]:
    """What restarts took, whatever they were for: lost hosts and workers, hosts that came back, and stops."""
    restarts, regrouping = history.restarts, history.account.regrouping
    if not restarts.count:
        return []
    parts = [f"starting again {show_duration(restarts.starting_seconds)}"]
    if regrouping:
        parts.insert(0, f"regrouping {show_duration(regrouping)}")
    if restarts.noticing_seconds:
        parts.insert(
            0,
            f"noticing that a host or worker was lost {show_duration(restarts.noticing_seconds)} (not accounted for "
            "above)",
        )
    if restarts.repeated_steps:
        parts.append(
            f"repeating {show_steps(restarts.repeated_steps)} made since the last checkpoint "
            f"{show_duration(restarts.repeated_seconds)} (in the phases above)"
        )
    total = regrouping + restarts.seconds
    return [
        f"started {len(history.starts)} times; the restarts took {show_duration(total)} of the time: {', '.join(parts)}"
    ]


PART_WORDS = {
    "starting": "starting and loading",
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "communication": "communication",
    "optimiser": "optimiser",
    "checkpoint": "checkpoints",
    "evaluation": "scoring",
    "other": "other work between steps",
    "regrouping": "regrouping after a host or worker was lost or came back",
    "unaccounted": "not accounted for (records without phases, or lost with a killed worker)",
}

_COUNTED_IN = {"communication": " (exchanging gradients, and waiting for other workers)"}


def what_is_a_step(case: Case) -> Answer:
    history, train = case.history, case.history.recipe.train
    targets = [step["targets"] for step in history.first.typical() if "targets" in step]
    mean_targets = sum(targets) / len(targets) if targets else 0
    return Answer(
        "step",
        "What is a step here, and how long is one?",
        show_step(history.seconds_per_step),
        f"A step is one update of the weights from {train.slots} slots with {show_count(mean_targets)} {history.unit} "
        f"together, shared by {show_workers(history.size)}{_format_earlier(history)}; "
        f"it takes {show_step(history.seconds_per_step)} on average.",
        [
            f"mean {show_step(history.seconds_per_step)}, p50 {show_step(history.percentile(0.5))}, "
            f"p99 {show_step(history.percentile(0.99))}, scoring and saving between steps left out",
            f"{show_count(mean_targets / history.seconds_per_step if history.seconds_per_step else 0)} "
            f"{history.unit} a second; {_format_batch(history.recipe)}",
            *(note_of_steps(history, of_first=True) if is_too_short(history) else []),
            *_format_layout(history),
        ],
    )


def _format_earlier(history: History) -> str:
    """With how many workers steps were made before, if it was another number."""
    earlier = ", ".join(f"{workers} from step {step + 1:,}" for workers, step in history.earlier_sizes)
    return f" (before step {history.first.layout_step + 1:,}: {earlier})" if earlier else ""


def _format_layout(history: History) -> list[str]:
    """That a step was another thing before, if workers or hosts have changed."""
    found = []
    if history.first.layout_step:
        found.append(
            f"only the steps after {history.first.layout_step:,} count here and in answers based on it: earlier ones "
            "had other workers or hosts"
        )
    if len(history.stretches) > 1:
        found += map(format_stretch, history.stretches)
    return found


def format_stretch(stretch: Stretch) -> str:
    """Which steps, by whom, and what one took."""
    first, last = stretch.steps[0]["step"], stretch.steps[-1]["step"]
    hosts = f"{len(stretch.hosts)} hosts" if len(stretch.hosts) > _NAMED_HOSTS else ", ".join(stretch.hosts)
    text = f"steps {first:,} to {last:,}: {show_workers(stretch.workers)}{hosts and f' on {hosts}'}, "
    text += f"{show_step(stretch.seconds_per_step)} a step"
    if stretch.workers > 1:
        text += f", {show_share(stretch.communication_share)} of it waiting for other workers and the network"
        if stretch.received_per_step is not None:
            text += f", {show_bytes(stretch.received_per_step)} received on average"
    return text


def _format_batch(recipe: Recipe) -> str:
    task: RecipeDeclaration = find_task(recipe.task)
    batch = task.batch(recipe)
    return f"{batch} a step ({batch.key})"


WELL_USED = 0.8
_NAMED_HOSTS = 4
"""Of more hosts, only their number is told."""


def were_devices_used(case: Case) -> Answer:
    history, time = case.history, case.time
    states = [host_state(sample) for sample in history.host_samples]
    has_gpus = any(state.gpus for state in states)
    question = f"Were the {'GPUs' if has_gpus else 'CPUs'} fully used, and by what measure?"
    used = None if has_gpus else cpu_share(history)
    evidence = [*_flops_evidence(history), *_sampled_evidence(states)]
    if used is not None:
        evidence.append(f"the workers' threads ran on a processor for {show_share(used)} of the time")
    if not case.is_time_measured:
        return Answer("devices", question, "unknown", NOT_MEASURED, evidence)
    evidence += note_of_steps(history)
    computing = (time.compute + time.optimiser) / time.seconds
    evidence.insert(0, f"{show_share(computing)} of a step is computing; the rest is waiting and overhead")
    if computing > WELL_USED and used is not None and used < WELL_USED:
        sentence = (
            f"No: they compute in {show_share(computing)} of a step's time, but {format_held_back(used)}."
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
    if used is not None and used < WELL_USED * computing:
        sentence += f" Moreover, {format_held_back(used)}."
    return Answer("devices", question, "no", sentence, evidence)


def format_held_back(used: float) -> str:
    """That workers which seem to compute were kept off the processors."""
    return (
        f"they ran on a processor for only {show_share(used)} of the time: other programs used the machine, or a "
        "limit held them back"
    )


def _flops_evidence(history: History) -> list[str]:
    flops, peak = history.facts.get("flops_per_step"), _peak_flops(history)
    if not flops or not peak or not history.seconds_per_step:
        return []
    share = flops / history.seconds_per_step / peak
    measured = (
        f"{peak / 1e9:,.0f} GFLOP/s together, the fastest of short measurements before and after training"
    )
    if share > 1:
        return [
            f"{flops:.3g} FLOPs per step are more than matrix products reached ({measured}): other programs were using "
            "the machine while that was measured, so the share of the peak is unknown; `echelon benchmark` measures it"
        ]
    return [
        f"{flops:.3g} FLOPs per step are {show_share(share)} of the peak ({measured}): the strictest measure. If other "
        "programs used the machine during those measurements, the true share is lower"
    ]


def _sampled_evidence(states: Sequence[HostLoad]) -> list[str]:
    """What the hosts' samples show, as far as they were measured."""
    busy = [state.gpus_busy for state in states if state.gpus_busy is not None]
    heat = [state.celsius for state in states if state.celsius is not None]
    read = _mean_over_time(states, lambda state: state.disk_read)
    written = _mean_over_time(states, lambda state: state.disk_written)
    found = []
    if busy:
        share = show_share(sum(busy) / len(busy))
        found.append(f"the driver reports the GPUs {share} busy, which includes waiting for other workers")
    if heat:
        found.append(f"the hottest GPU reached {max(heat):.0f} °C")
    if read is not None and written is not None:
        found.append(
            f"a host's disks read {show_bytes(read)} and wrote {show_bytes(written)} a second on average"
        )
    return found


def _mean_over_time(states: Sequence[HostLoad], rate_of: Callable[[HostLoad], float | None]) -> float | None:
    """A rate of all hosts while they were sampled: a short sample counts for less than a long one."""
    rates = [(rate, state.seconds) for state in states if (rate := rate_of(state)) is not None]
    total = sum(seconds for _, seconds in rates)
    return sum(rate * seconds for rate, seconds in rates) / total if total else None


def _peak_flops(history: History) -> float | None:
    peaks = [worker.facts.get("peak_flops") for worker in history.workers]
    return sum(peaks) if all(peaks) else None  # type: ignore[arg-type]


def cpu_share(history: History) -> float | None:
    """Share of the available processor time that workers used; None if it was not measured."""
    used = [
        (step["cpu"], sum(step["phases"].values()) * worker.facts.get("threads", 1))
        for worker in history.workers
        for step in worker.typical()
        if is_number(step.get("cpu"))
    ]
    total = sum(possible for _, possible in used)
    return min(1.0, sum(cpu for cpu, _ in used) / total) if total else None
