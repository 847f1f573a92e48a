"""Where the time went, what a step is, and whether the devices were used."""

from __future__ import annotations

from echelon.explain.answers.case import Answer, Case
from echelon.explain.history import History
from echelon.explain.wording import show_count, show_duration, show_share, show_step
from echelon.recipe.schema import Recipe, TranslationRecipe


def how_long(case: Case) -> Answer:
    history = case.history
    totals = {phase: seconds for phase, seconds in history.totals.items() if seconds > 0}
    counted = sum(totals.values())
    largest = sorted(totals, key=lambda phase: -totals[phase])[:3]
    where = ", ".join(f"{PHASE_WORDS[phase]} {show_share(totals[phase] / counted)}" for phase in largest)
    lost = max(0.0, history.seconds - counted)
    evidence = [
        f"{PHASE_WORDS[phase]}: {show_duration(totals[phase])} ({show_share(totals[phase] / counted)})"
        for phase in sorted(totals, key=lambda phase: -totals[phase])
    ]
    evidence.append(
        f"{show_duration(counted)} of the {show_duration(history.seconds)} from the first record to the last are "
        f"accounted for ({show_share(counted / history.seconds if history.seconds else 1.0)})"
    )
    starting = sum(float(start.get("setup_seconds") or 0.0) for start in history.starts)
    if starting:
        evidence.append(f"before that, starting and loading took {show_duration(starting)}")
    if len(history.starts) > 1:
        evidence.append(
            f"started {len(history.starts)} times; {show_duration(lost)} lie between a stop and the next step"
        )
    state = "took" if history.outcome in ("finished", "stopped early") else "has taken"
    answer = f"It {state} {show_duration(history.seconds)} for {show_count(len(history.steps))} steps"
    return Answer(
        "duration",
        "How long did it take, and where did the time go?",
        show_duration(history.seconds),
        f"{answer}: {where}." if where else f"{answer}.",
        evidence,
    )


PHASE_WORDS = {
    "data": "waiting for data",
    "forward": "forward",
    "backward": "backward",
    "communication": "waiting for other workers and the network",
    "optimiser": "optimiser",
    "checkpoint": "checkpoints",
    "evaluation": "scoring",
    "other": "other",
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
    gpus = [gpu for sample in history.host_samples for gpu in sample.get("gpus") or []]
    kind = "GPUs" if gpus else "CPUs"
    computing = (time.compute + time.optimiser) / time.seconds if time.seconds else 0.0
    evidence = [f"{show_share(computing)} of a step is computing; the rest is waiting and overhead"]
    flops, peak = history.facts.get("flops_per_step"), _peak_flops(history)
    if flops and peak and history.seconds_per_step:
        share = flops / history.seconds_per_step / peak
        evidence.append(
            f"{flops:.3g} FLOPs a step are {show_share(share)} of what matrix products reach here "
            f"({peak / 1e9:,.0f} GFLOP/s together): the strictest measure"
        )
    if gpus:
        busy = sum(gpu["busy"] for gpu in gpus) / len(gpus)
        evidence.append(
            f"the driver calls the GPUs {show_share(busy)} busy, which waiting for others counts as well"
        )
    else:
        busy = _cpu_share(history)
        evidence.append(f"the workers used {show_share(busy)} of the processor time that they could have had")
        if computing > WELL_USED and 0 < busy < WELL_USED:
            sentence = (
                f"No: they compute in {show_share(computing)} of a step's time, but had {show_share(busy)} of their "
                "processors: other programs ran beside them, or a limit holds them back."
            )
            return Answer("devices", _devices_question(kind), "no", sentence, evidence)
    is_used = computing > WELL_USED
    how = "Yes" if is_used else "No"
    waits = {name: value for name, value in time.parts().items() if name.startswith("waiting")}
    most = max(waits, key=lambda name: waits[name])
    why = (
        ""
        if is_used
        else f"; {show_share(waits[most] / time.seconds if time.seconds else 0)} goes into {most}"
    )
    return Answer(
        "devices",
        _devices_question(kind),
        "yes" if is_used else "no",
        f"{how}: they compute in {show_share(computing)} of a step's time{why}.",
        evidence,
    )


def _devices_question(kind: str) -> str:
    return f"Were the {kind} fully used, and by what measure?"


def _peak_flops(history: History) -> float | None:
    peaks = [worker.facts.get("peak_flops") for worker in history.workers]
    return sum(peaks) if all(peaks) else None  # type: ignore[arg-type]


def _cpu_share(history: History) -> float:
    used = [
        (step.get("cpu", 0.0), sum(step["phases"].values()) * worker.facts.get("threads", 1))
        for worker in history.workers
        for step in worker.typical()
    ]
    total = sum(possible for _, possible in used)
    return min(1.0, sum(cpu for cpu, _ in used) / total) if total else 0.0
