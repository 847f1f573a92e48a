"""Whether the network was the bottleneck, stragglers, traffic, and scaling."""

from __future__ import annotations

import math

from echelon.explain.answers.case import NOT_MEASURED, Answer, Case, is_too_short, note_of_steps
from echelon.explain.collectives import Algorithm
from echelon.explain.diagnosis import (
    IN_MEMORY,
    SLOWER,
    StepTime,
    algorithm_of,
    find_last,
    find_straggler,
    num_slots_of,
    seconds_of_even_shares,
)
from echelon.explain.history import History, Worker
from echelon.explain.units import show_bytes, show_rate, show_share, show_step, show_steps
from echelon.explain.what_if import Replanning


def was_it_the_network(case: Case) -> Answer:
    history, time, wire = case.history, case.time, case.traffic
    question = "Was the network the bottleneck?"
    if history.size == 1:
        return Answer("network", question, "no", "No: there is only one worker.")
    if not case.is_time_measured:
        return Answer("network", question, "unknown", NOT_MEASURED)
    share = time.network / time.seconds if time.seconds else 0.0
    if history.num_hosts == 1:
        sentence = (
            f"No: all workers are on one machine, so nothing leaves it. {_format_exchange(time, share)}"
        )
        waiting = show_share(time.stragglers / time.seconds if time.seconds else 0.0)
        evidence = [f"waiting for slower workers takes {waiting}", *note_of_steps(history)]
        return Answer("network", question, "no", sentence, evidence)
    evidence = [
        f"{show_share(share)} of a step is communication that backward did not hide; waiting for slower workers "
        f"({show_share(time.stragglers / time.seconds if time.seconds else 0.0)}) is not included",
    ]
    if wire.used is not None and wire.line_bytes_per_s is not None and wire.measured is not None:
        evidence.append(
            f"the network interface moved {show_bytes(wire.measured)} in a typical step, "
            f"{show_rate(wire.measured / history.seconds_per_step)} averaged over a step: "
            f"{show_share(wire.used)} of the "
            f"{show_rate(wire.line_bytes_per_s)} that were measured before training"
        )
    card = history.facts.get("card")
    if card:
        evidence.append(f"the hosts are joined by {card}")
    evidence += note_of_steps(history)
    if time.bound == "network":
        sentence = (
            f"Yes: {show_share(share)} of a step is waiting for the network, more than anything else takes."
        )
        return Answer("network", question, "yes", sentence, evidence)
    if share > 0.2:
        most = _BOUNDS[time.bound]
        sentence = (
            f"In part: {show_share(share)} of a step is waiting for the network, but {most} takes more."
        )
        return Answer("network", question, "in part", sentence, evidence)
    sentence = f"No: only {show_share(share)} of a step is waiting for the network; {_format_bound(time)}."
    return Answer("network", question, "no", sentence, evidence)


_BOUNDS = {"compute": "computing", "input": "waiting for data", "stragglers": "waiting for slower workers"}


def _format_bound(time: StepTime) -> str:
    """What takes the largest part; most, if that is more than half."""
    causes = {
        "computing": time.compute + time.optimiser,
        "waiting for data": time.input,
        "waiting for slower workers": time.stragglers,
        time.exchange_label: time.network,
    }
    first, second = sorted(causes, key=lambda name: -causes[name])[:2]
    share = causes[first] / time.seconds
    if share > 0.5:
        return f"{first} takes most of it, {show_share(share)}"
    return f"{first} takes {show_share(share)}, {second} {show_share(causes[second] / time.seconds)}"


def _format_exchange(time: StepTime, share: float) -> str:
    """What exchanging gradients takes on one machine, and what takes more; each is named once."""
    bound = _format_bound(time)
    if time.exchange_label not in bound:
        return f"Exchanging gradients takes {show_share(share)} of a step; {bound}."
    if share > 0.5:
        return f"Exchanging gradients takes most of a step, {show_share(share)}."
    return f"In a step, {bound}."


def who_held_up(case: Case) -> Answer | None:
    history = case.history
    if history.size == 1 or not case.is_time_measured:
        return None
    question, found = "Did one worker hold the others up?", find_straggler(history)
    evidence = [_describe_worker(history, worker) for worker in history.workers]
    evidence += _describe_dealing(history) + note_of_steps(history)
    if is_too_short(history):
        steps = show_steps(len(history.first.typical()))
        sentence = f"There is too little data to tell: {steps} since workers or hosts changed."
        return Answer("stragglers", question, "unknown", sentence, evidence)
    if found is None:
        share = case.time.stragglers / case.time.seconds if case.time.seconds else 0.0
        slots, size = history.recipe.train.slots, len(history.workers)
        sentence = (
            f"No: none is slower than the others by enough to matter{_uneven(slots, size)}; waiting for each other "
            f"takes {show_share(share)}.{_describe_last(history)}"
        )
        return Answer("stragglers", question, "no", sentence, evidence)
    worker = found.worker
    return Answer(
        "stragglers",
        question,
        f"worker {worker.rank}",
        f"Yes: worker {worker.rank} on {worker.host or '?'} takes {found.slower:.2f} times as long "
        f"per slot as {_others(history)}, and finishes last in {show_share(found.share)} of the steps.",
        evidence,
    )


def _others(history: History) -> str:
    return "the other" if history.size == 2 else "the others"


def _describe_worker(history: History, worker: Worker) -> str:
    since = (
        f" (since step {worker.layout_step + 1:,})" if worker.layout_step > history.first.layout_step else ""
    )
    slots, waiting = round(num_slots_of(history, worker), 1), worker.mean_phase("communication")
    return (
        f"worker {worker.rank} on {worker.host or '?'}{since}: busy {show_step(worker.busy_seconds())} a step "
        f"with {slots:g} {'slot' if slots == 1 else 'slots'}, exchanging and waiting {show_step(waiting)}"
    )


def _describe_dealing(history: History) -> list[str]:
    """What dealing slots by speed has gained, if that was done."""
    seconds = seconds_of_even_shares(history)
    if seconds is None:
        return []
    return [f"slots are dealt by speed: in even shares a step would take {show_step(seconds)} longer"]


def _describe_last(history: History) -> str:
    """Why a worker that is mostly the last is no straggler."""
    last = find_last(history)
    if last is None:
        return ""
    return (
        f" Worker {last.worker.rank} on {last.worker.host or '?'} finishes last in {show_share(last.share)} of the "
        f"steps, but it takes {last.slower:.2f} times as long per slot as {_others(history)}, and is called "
        f"slow only from {SLOWER:g} times."
    )


def _uneven(slots: int, workers: int) -> str:
    """Why equally fast workers wait for each other, if they do."""
    return f", but {slots} slots do not divide evenly among {workers} workers" if slots % workers else ""


def how_much_traffic(case: Case) -> Answer:
    history, wire = case.history, case.traffic
    question = "How are traffic and step time related?"
    if history.size == 1:
        return Answer(
            "traffic",
            question,
            "none",
            "A single worker exchanges nothing, so there is no traffic to compare.",
        )
    exchange = str(history.facts.get("exchange", "all_reduce"))
    if exchange == IN_MEMORY:
        sentence = (
            f"Nothing goes over a wire: the workers sum {show_bytes(wire.size)} a step in shared memory."
        )
        return Answer("traffic", question, "none", sentence)
    where = (
        "over loopback, where all workers meet"
        if history.num_hosts == 1
        else "through each host's network interface"
    )
    evidence = [
        f"the {exchange} exchange sums {show_bytes(wire.size)} a step (the gradient is parameters x 4 bytes); "
        f"among {history.size} workers, {_WAYS[algorithm_of(history)]}, {wire.share:.3g} times that goes "
        f"{where}: {show_bytes(wire.expected)} a step in each direction",
    ]
    if wire.measured is None:
        sentence = f"{show_bytes(wire.expected)} a step should go {where}; the bytes were not counted there."
        return Answer("traffic", question, "not measured", sentence, evidence)
    off = wire.measured / wire.expected - 1 if wire.expected else 0.0
    evidence.append(
        f"counted there: {show_bytes(wire.measured)} a step, {off:+.1%}{_explain_difference(off)}"
    )
    evidence += note_of_steps(history, of_first=True)
    sentence = (
        f"{show_bytes(wire.measured)} a step went {where}, {off:+.1%} against the {show_bytes(wire.expected)} that the "
        "exchange should move"
    )
    if wire.line_bytes_per_s:
        least = wire.expected / wire.line_bytes_per_s
        share = least / history.seconds_per_step if history.seconds_per_step else 0.0
        sentence += f"; at the link's rate those {show_bytes(wire.expected)} take {show_step(least)}, "
        sentence += f"{show_share(share)} of a step"
        evidence.append(
            f"no step can be shorter than {show_step(least)} here, however fast the devices are, "
            "unless less is exchanged"
        )
    return Answer("traffic", question, show_bytes(wire.measured), f"{sentence}.", evidence)


def _explain_difference(off: float) -> str:
    """What is counted beyond the gradients, if it is as much as that usually is."""
    return "; the difference is headers and acknowledgements of TCP and IP" if 0 < off < _OVERHEAD else ""


_OVERHEAD = 0.15
_WAYS: dict[Algorithm, str] = {
    "ring": "in a ring",
    "tree": "in trees",
    "hierarchical": "inside each host first, then between hosts",
    "all_to_all": "each with all others",
    "parameter_server": "to the servers and back",
}


def how_does_it_scale(case: Case) -> Answer | None:
    if not case.is_time_measured:
        return None
    history, time = case.history, case.time
    question = "How well did it scale, and what would the next doubling give?"
    replanning = case.replanning
    if replanning is None or not history.seconds_per_step:
        return None
    slots, size = history.recipe.train.slots, history.size
    alone = slots * replanning.profile.slot_seconds + time.optimiser + time.other
    efficiency = alone / (size * history.seconds_per_step)
    now, doubled = replanning.seconds(), replanning.seconds(times=2)
    evidence = [
        f"one such worker alone would need {show_step(alone)} a step, {size} need "
        f"{show_step(history.seconds_per_step)}: "
        f"{alone / history.seconds_per_step:.3g} times as fast",
        f"predicted from this run's own times: {show_step(now)} a step for {size} workers, "
        f"{show_step(doubled)} for {2 * size}",
    ]
    if history.num_hosts > 1 and history.link is None:
        evidence.append(_about_the_line(replanning))
    if 2 * size > slots:
        evidence.append(
            f"a step has {slots} slots (train.slots): workers beyond {slots} would have nothing to do"
        )
    verb = "reached" if size > 1 else "can reach"
    return Answer(
        "scaling",
        question,
        show_share(efficiency),
        f"Each worker {verb} {show_share(min(efficiency, 1.0))} of its speed alone; "
        f"{_doubling(now / doubled, _room(history))}.",
        evidence,
    )


def _room(history: History) -> str:
    """What twice as many workers would need, if this one machine may not have it."""
    if history.num_hosts > 1:
        return ""
    return f", on twice as many {_devices(history)},"


def _devices(history: History) -> str:
    return "GPUs" if any(sample.get("gpus") for sample in history.host_samples) else "cores"


def _doubling(faster: float, room: str) -> str:
    """What twice as many workers do to the step's time."""
    if faster < 0.995:
        return f"twice as many workers{room} would make a step take {show_share(1 / faster - 1)} longer"
    return f"twice as many workers{room} would make it {faster:.2f} times as fast"


def _about_the_line(replanning: Replanning) -> str:
    rate = replanning.cluster.line_bytes_per_s
    if math.isinf(rate):
        return "the link was not measured, and no worker waited for it, so it is assumed to be no limit"
    return f"the link was not measured; the time spent waiting for its bytes suggests {show_rate(rate)}"
