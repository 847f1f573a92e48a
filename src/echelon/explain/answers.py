"""The questions that everybody asks of a training run, each answered from its measurements in a plain sentence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from echelon.data.prepared import Manifest
from echelon.data.shards import SideCount
from echelon.explain.curves import forecast, smooth
from echelon.explain.describe import numbers_per_parameter
from echelon.explain.findings import (
    StepTime,
    Traffic,
    find_straggler,
    own_profile,
    predicted_step,
    step_time,
    traffic,
)
from echelon.explain.history import History
from echelon.explain.improvements import Improvement, find_improvements
from echelon.explain.wording import (
    show_bytes,
    show_count,
    show_duration,
    show_rate,
    show_share,
    show_step,
)
from echelon.explain.workload import Workload
from echelon.recipe.schedule import formula, rate_by_step
from echelon.recipe.schema import (
    Cosine,
    Exponential,
    Fixed,
    InverseSqrt,
    Noam,
    OneCycle,
    Piecewise,
    Polynomial,
)
from echelon.recipe.sizes import model_sizes

_MATTERS = 0.02
"""A loss that more training would lower by less than this share is as good as at its end."""
_WORSE = 0.02
"""By how much, relative to its best, the validation loss must have risen to speak of overfitting."""


@dataclass(frozen=True)
class Answer:
    """One question."""

    key: str
    question: str
    verdict: str
    """The answer in one or two words, for programs."""
    answer: str
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """Everything that answers are drawn from."""

    history: History
    manifest: Manifest | None
    workload: Workload | None
    hourly: float | None
    """Dollars for one host."""

    @property
    def time(self) -> StepTime:
        return step_time(self.history)

    @property
    def traffic(self) -> Traffic:
        return traffic(self.history)


def answer_all(case: Case) -> list[Answer]:
    """Every question that the run can answer."""
    questions: list[Callable[[Case], Answer | None]] = [
        how_long,
        what_is_a_step,
        is_it_trained,
        is_it_overfitting,
        were_devices_used,
        was_it_the_network,
        who_held_up,
        what_rate,
        how_big_is_the_data,
        what_is_a_checkpoint,
        how_much_traffic,
        how_does_it_scale,
        what_did_it_cost,
        what_would_be_better,
    ]
    found = [question(case) for question in questions]
    return [answer for answer in found if answer is not None]


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
        f"A step is one update of the weights from {train.slots} slots with {show_count(mean_targets)} target tokens "
        f"together, shared out over {workers}; it takes {show_step(history.seconds_per_step)} on average.",
        [
            f"mean {show_step(history.seconds_per_step)}, p50 {show_step(history.percentile(0.5))}, "
            f"p99 {show_step(history.percentile(0.99))}, scoring and saving between steps left out",
            f"{show_count(mean_targets / history.seconds_per_step if history.seconds_per_step else 0)} target tokens "
            f"a second; at most {show_count(train.batch_tokens)} tokens a step (train.batch_tokens)",
        ],
    )


def is_it_trained(case: Case) -> Answer:
    history = case.history
    question = "Is the model fully trained?"
    steps, losses = history.losses()
    found = forecast(steps, losses)
    if found is None:
        return Answer("trained", question, "unknown", "There are too few steps to tell.")
    more = max(1.0, found.last_step)
    gain, relative = found.gain(more), found.gain(more).expected / max(found.last, 1e-9)
    span = f"{gain.low:.3g} to {gain.high:.3g}"
    best = _best_valid(history)
    evidence = [
        f"the smoothed training loss is {found.last:.4g}, and falls by about the power "
        f"{sum(fit.power for fit in found.fits) / len(found.fits):.2g} of the step",
        f"another {show_count(more)} steps, as many again, would lower it by {gain.expected:.3g} ({span})",
    ]
    if best is not None and history.valid:
        evidence.append(
            f"the best validation loss was {best['loss']:.4g} at step {best['step']:,}, of {len(history.valid)} scorings"
        )
    if _overfits(history):
        return Answer(
            "trained",
            question,
            "past its best",
            "It is past its best: the validation loss has risen since step "
            f"{best['step'] if best else 0:,}, so more of the same will not help.",
            evidence,
        )
    if relative > _MATTERS:
        return Answer(
            "trained",
            question,
            "no",
            f"No: the loss is still falling, and training twice as long would lower it by about {show_share(relative)}.",
            evidence,
        )
    return Answer(
        "trained",
        question,
        "yes",
        f"Yes, nearly: training twice as long would lower the loss by only {show_share(relative)}.",
        evidence,
    )


def _best_valid(history: History) -> dict[str, Any] | None:
    scored = [record for record in history.valid if record.get("loss") is not None]
    return min(scored, key=lambda record: record["loss"]) if scored else None


def _overfits(history: History) -> bool:
    """Whether the validation loss has risen clearly since its best, while the training loss went on falling."""
    best = _best_valid(history)
    scored = [record for record in history.valid if record.get("loss") is not None]
    if best is None or scored[-1]["step"] == best["step"]:
        return False
    rise = scored[-1]["loss"] / best["loss"] - 1
    before, after = _train_loss_near(history, best["step"]), _train_loss_near(history, scored[-1]["step"])
    return rise > _WORSE and after < before


def _train_loss_near(history: History, step: int) -> float:
    """The smoothed training loss at a step."""
    steps, losses = history.losses()
    if not losses:
        return math.nan
    smoothed = smooth(losses)
    return float(smoothed[min(range(len(steps)), key=lambda index: abs(steps[index] - step))])


def is_it_overfitting(case: Case) -> Answer:
    history, question = case.history, "Is it overfitting?"
    best = _best_valid(history)
    scored = [record for record in history.valid if record.get("loss") is not None]
    if best is None or len(scored) < 2:
        return Answer(
            "overfitting",
            question,
            "unknown",
            "The validation set was scored too seldom to tell; evaluate.every says how often.",
        )
    last = scored[-1]
    train_loss = _train_loss_near(history, last["step"])
    evidence = [
        f"validation loss {last['loss']:.4g} at step {last['step']:,}; its best was {best['loss']:.4g} at step "
        f"{best['step']:,}",
        f"smoothed training loss at the same step: {train_loss:.4g}, a gap of {last['loss'] - train_loss:+.3g}",
    ]
    if _overfits(history):
        rise = last["loss"] / best["loss"] - 1
        sentence = (
            f"Yes: since step {best['step']:,} the validation loss has risen by {show_share(rise)} while the training "
            "loss went on falling. The best checkpoint is from before that."
        )
        return Answer("overfitting", question, "yes", sentence, evidence)
    sentence = "No: the validation loss is at or near its best at the end."
    return Answer("overfitting", question, "no", sentence, evidence)


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
    is_used = computing > 0.8
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
        f"Were the {kind} fully used, and by what measure?",
        "yes" if is_used else "no",
        f"{how}: they compute in {show_share(computing)} of a step's time{why}.",
        evidence,
    )


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


def was_it_the_network(case: Case) -> Answer:
    history, time, wire = case.history, case.time, case.traffic
    question = "Was the network the bottleneck?"
    if history.size == 1:
        return Answer("network", question, "no", "No: one worker has nobody to talk to.")
    share = time.network / time.seconds if time.seconds else 0.0
    evidence = [
        f"{show_share(share)} of a step is communication that backward did not hide; waiting for slower workers "
        f"({show_share(time.stragglers / time.seconds if time.seconds else 0.0)}) is not counted in",
    ]
    if wire.used is not None and wire.line_bytes_per_s is not None and wire.measured is not None:
        evidence.append(
            f"the card moved {show_rate(wire.measured / history.seconds_per_step)} on average, {show_share(wire.used)} of the "
            f"{show_rate(wire.line_bytes_per_s)} that were measured before training"
        )
    elif history.num_hosts == 1:
        evidence.append("all workers are on one machine: nothing left it")
    card = history.facts.get("card")
    if card:
        evidence.append(f"the cluster's card is {card}")
    if time.bound == "network":
        sentence = (
            f"Yes: {show_share(share)} of a step is waiting for the network, more than anything else takes."
        )
        return Answer("network", question, "yes", sentence, evidence)
    if share > 0.2:
        sentence = (
            f"In part: {show_share(share)} of a step is waiting for the network, but {time.bound} takes more."
        )
        return Answer("network", question, "in part", sentence, evidence)
    sentence = (
        f"No: only {show_share(share)} of a step is waiting for the network; {BOUND_WORDS[time.bound]}."
    )
    return Answer("network", question, "no", sentence, evidence)


BOUND_WORDS = {
    "compute": "computing takes most of it",
    "input": "waiting for data takes most of it",
    "stragglers": "waiting for slower workers takes most of it",
    "network": "the network takes most of it",
}


def who_held_up(case: Case) -> Answer | None:
    history = case.history
    if history.size == 1:
        return None
    question, found = "Did one worker hold the others up?", find_straggler(history)
    evidence = [
        f"worker {worker.rank} on {worker.host or '?'}: busy {show_step(worker.busy_seconds())} a step, waits "
        f"{show_step(worker.mean_phase('communication'))}"
        for worker in history.workers
    ]
    if found is None:
        share = case.time.stragglers / case.time.seconds if case.time.seconds else 0.0
        sentence = f"No: none is slower than the others by enough to matter; waiting for each other takes {show_share(share)}."
        return Answer("stragglers", question, "no", sentence, evidence)
    worker = found.worker
    return Answer(
        "stragglers",
        question,
        f"worker {worker.rank}",
        f"Yes: worker {worker.rank} on {worker.host or '?'} needs {found.slower:.2f} times as long as the others, and was "
        f"the last in {show_share(found.share)} of the steps.",
        evidence,
    )


def what_rate(case: Case) -> Answer:
    recipe, history = case.history.recipe, case.history
    rate = rate_by_step(recipe, history.planned_steps)
    rates = {
        step: rate(step) for step in range(1, history.planned_steps + 1, max(1, history.planned_steps // 500))
    }
    peak = max(rates, key=lambda step: rates[step])
    return Answer(
        "schedule",
        "What is the learning-rate schedule?",
        recipe.schedule.kind,
        f"{schedule_words(recipe.schedule)} It is highest, {rates[peak]:.3g}, about step {peak:,}, and "
        f"{rate(history.planned_steps):.3g} at the last step.",
        [f"in the step s: {formula(recipe.schedule, model_sizes(recipe.model)['d_model'])}"],
    )


def schedule_words(schedule: Any) -> str:
    """What a schedule does, and why it is that way."""
    match schedule:
        case Noam() | InverseSqrt():
            return (
                f"The rate rises in a straight line for {schedule.warmup_steps:,} steps, while Adam's averages are still "
                "forming, and then falls with the square root of the step."
            )
        case Cosine():
            return "After a warm-up the rate follows half a cosine down: slowly, then quickly, then slowly again."
        case Polynomial():
            return f"After {schedule.warmup_steps:,} steps of warm-up the rate falls along a polynomial to its final value."
        case OneCycle():
            return "The rate rises to a high peak and falls again to almost nothing: one cycle for the whole training."
        case Piecewise():
            return "The rate is constant and drops at given steps."
        case Exponential():
            return "The rate is multiplied by the same factor again and again."
        case Fixed():
            return "The rate stays the same."
    raise AssertionError(schedule)


def how_big_is_the_data(case: Case) -> Answer:
    question = "How big was the training set?"
    if case.manifest is None:
        return Answer(
            "training_set", question, "unknown", "The prepared data are not on this machine any more."
        )
    corpora = [corpus for corpus in case.manifest.corpora if corpus.name.startswith("train")]
    source = sum((corpus.source for corpus in corpora), SideCount())
    target = sum((corpus.target for corpus in corpora), SideCount())
    pairs, lines = sum(corpus.pairs for corpus in corpora), sum(corpus.lines for corpus in corpora)
    languages = case.manifest.source_language, case.manifest.target_language
    evidence = [
        f"{language} ({side}): {show_bytes(count.bytes)} of text, {show_count(count.words)} words, "
        f"{show_count(count.tokens)} tokens"
        for language, side, count in zip(languages, ("source", "target"), (source, target), strict=True)
    ]
    evidence.append(f"{show_count(lines - pairs)} of {show_count(lines)} lines were dropped in cleaning")
    evidence.append(f"a joint vocabulary of {show_count(case.manifest.vocabulary)} pieces")
    return Answer(
        "training_set",
        question,
        f"{pairs} lines",
        f"{show_bytes(source.bytes + target.bytes)} in {show_count(pairs)} line pairs: {show_count(source.tokens)} source and "
        f"{show_count(target.tokens)} target tokens.",
        evidence,
    )


def what_is_a_checkpoint(case: Case) -> Answer | None:
    history, question = case.history, "What is a checkpoint made of, how big is it, and why just that big?"
    parameters = history.facts.get("parameters")
    if not parameters or not history.checkpoints:
        return None
    numbers = numbers_per_parameter(history.recipe)
    size, expected = history.checkpoints[-1]["bytes"], parameters * 4 * numbers
    kept = {3: "weights, and Adam's two averages", 2: "weights, and the momentum", 1: "weights"}[numbers]
    evidence = [
        f"{show_count(parameters)} parameters x {4 * numbers} bytes ({kept}, 4 bytes each) = {show_bytes(expected)}",
        f"the remaining {show_bytes(size - expected)} are tensor names and shapes, checksums and state.json (step, best "
        "score, patience)",
    ]
    evidence += _checkpoint_files(case)
    mean = sum(record["seconds"] for record in history.checkpoints) / len(history.checkpoints)
    evidence.append(f"{len(history.checkpoints)} were written, each in {show_step(mean)} behind training")
    return Answer(
        "checkpoint",
        question,
        show_bytes(size),
        f"{show_bytes(size)}: {show_count(parameters)} parameters x {4 * numbers} bytes, and {show_bytes(size - expected)} of "
        "names and state.",
        evidence,
    )


def _checkpoint_files(case: Case) -> list[str]:
    """The newest checkpoint's files that weigh something."""
    folders = sorted(case.history.run.checkpoints.glob("step-*"))
    if not folders:
        return []
    files = sorted(file for file in folders[-1].iterdir() if file.suffix in (".safetensors", ".json"))
    told = [
        f"{file.name} {show_bytes(file.stat().st_size)}"
        for file in files
        if not file.name.endswith("checksum.json")
    ]
    return [f"{folders[-1].name}: {', '.join(told)}, and a checksum beside each"]


def how_much_traffic(case: Case) -> Answer:
    history, wire = case.history, case.traffic
    question = "How do traffic and step time go together?"
    if history.size == 1:
        return Answer(
            "traffic", question, "none", "One worker exchanges nothing, and its step time has no part in it."
        )
    where = (
        "over loopback, where all edges of the ring lie"
        if history.num_hosts == 1
        else "through each host's card"
    )
    evidence = [
        f"the gradient is {show_bytes(wire.size)} (parameters x 4 bytes); a ring of {history.size} workers moves "
        f"{wire.share:.3g} times that {where}: {show_bytes(wire.expected)} a step in each direction",
    ]
    if wire.measured is None:
        sentence = f"{show_bytes(wire.expected)} a step should go {where}; the card's bytes were not counted."
        return Answer("traffic", question, "not measured", sentence, evidence)
    off = wire.measured / wire.expected - 1 if wire.expected else 0.0
    evidence.append(
        f"counted at the card: {show_bytes(wire.measured)} a step, {off:+.1%}; headers of TCP and IP are the rest"
    )
    sentence = (
        f"{show_bytes(wire.measured)} a step went {where}, {off:+.1%} against what the exchange should move"
    )
    if wire.line_bytes_per_s:
        least = wire.expected / wire.line_bytes_per_s
        share = least / history.seconds_per_step if history.seconds_per_step else 0.0
        sentence += f"; at the line's rate that takes {show_step(least)}, {show_share(share)} of a step"
        evidence.append(
            f"no step can be shorter than {show_step(least)} here, however fast the devices are, unless less is exchanged"
        )
    return Answer("traffic", question, show_bytes(wire.measured), f"{sentence}.", evidence)


def how_does_it_scale(case: Case) -> Answer | None:
    history, time = case.history, case.time
    question = "How well did it scale, and what would the next doubling give?"
    if case.workload is None or not history.seconds_per_step:
        return None
    slots, size = history.recipe.train.slots, history.size
    alone = slots * own_profile(history).slot_seconds + time.optimiser + time.other
    efficiency = alone / (size * history.seconds_per_step)
    doubled = predicted_step(
        history, case.workload, hosts=2 * max(1, history.num_hosts if history.num_hosts > 1 else 1)
    )
    gain = history.seconds_per_step / doubled
    evidence = [
        f"one such worker alone would need {show_step(alone)} a step, {size} need {show_step(history.seconds_per_step)}: "
        f"{alone / history.seconds_per_step:.3g} times as fast",
        f"predicted for {2 * size} workers from this run's own times: {show_step(doubled)} a step",
    ]
    if 2 * size > slots:
        evidence.append(
            f"a step has {slots} slots (train.slots): more than {slots} workers have nothing to do"
        )
    verb = "did" if size > 1 else "can do"
    return Answer(
        "scaling",
        question,
        show_share(efficiency),
        f"Each worker {verb} {show_share(min(efficiency, 1.0))} of what it does alone; twice as many would be "
        f"{gain:.2f} times as fast.",
        evidence,
    )


def what_did_it_cost(case: Case) -> Answer:
    history, question = case.history, "What did it cost?"
    hours = history.seconds / 3600 * history.num_hosts
    watts = [
        gpu["watts"] for sample in history.host_samples for gpu in sample.get("gpus") or [] if "watts" in gpu
    ]
    evidence = [f"{hours:.3g} host hours: {history.num_hosts} for {show_duration(history.seconds)}"]
    if watts:
        kwh = sum(watts) / len(watts) * history.size * history.seconds / 3.6e6
        evidence.append(f"the GPUs took about {kwh:.3g} kWh")
    if case.hourly is None:
        sentence = f"{hours:.3g} host hours; nobody said what one costs (--price, or --machine)."
        return Answer("cost", question, "unknown", sentence, evidence)
    cost = hours * case.hourly
    evidence.append(f"at ${case.hourly:g} an hour for each host")
    step_cost = cost / max(1, len(history.steps)) * 1000
    return Answer(
        "cost", question, f"${cost:.2f}", f"${cost:,.2f}, or ${step_cost:,.2f} for 1,000 steps.", evidence
    )


def what_would_be_better(case: Case) -> Answer:
    question = "What would have made it cheaper or faster?"
    found = improvements_of(case)
    if not found:
        sentence = "Nothing that the measurements show: nearly all time is computing."
        return Answer("improvements", question, "nothing", sentence)
    first = found[0]
    return Answer(
        "improvements",
        question,
        first.name,
        f"Most of all: {first.advice} ({_lower(first)}).",
        [f"{number}. {entry.advice}: {_lower(entry)}" for number, entry in enumerate(found, start=1)],
    )


def improvements_of(case: Case) -> list[Improvement]:
    return find_improvements(case.history, case.time, case.workload, has_overfitted=_overfits(case.history))


def _lower(entry: Improvement) -> str:
    return f"{show_share(entry.saved)} less time" + (f", {entry.caveat}" if entry.caveat else "")
