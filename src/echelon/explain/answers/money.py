"""What a run cost, and what would have made it cheaper or faster."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from echelon.explain.answers.case import NOT_MEASURED, Answer, Case
from echelon.explain.answers.convergence import overfits
from echelon.explain.answers.time import WELL_USED, cpu_share, format_held_back
from echelon.explain.improvements import Improvement, find_improvements
from echelon.explain.stretches import Rental
from echelon.explain.units import show_duration, show_share


def what_did_it_cost(case: Case) -> Answer:
    history, question = case.history, "What did it cost?"
    watts = [
        gpu["watts"] for sample in history.host_samples for gpu in sample.get("gpus") or [] if "watts" in gpu
    ]
    hours = f"{case.host_hours:.3g} host hours"
    evidence = [f"{hours}: {_format_rentals(history.rentals)}"]
    if history.num_hosts < history.hosts_given:
        evidence.append(
            "a host that stood by or was lost is counted to the end of its launch, because a rented one is paid for "
            "until then"
        )
    if history.pause_seconds >= 1:
        evidence.append(
            f"{show_duration(history.pause_seconds)} between a stop and the next launch are not counted: "
            "hosts kept running meanwhile cost extra"
        )
    if watts:
        kwh = sum(watts) / len(watts) * history.size * history.training_seconds / 3.6e6
        evidence.append(f"the GPUs used about {kwh:.3g} kWh")
    cost = case.cost
    if cost is None:
        sentence = f"{hours}; --price or --machine turns them into dollars."
        return Answer("cost", question, "unknown", sentence, evidence)
    evidence.append(f"at ${case.hourly:g} an hour for each host")
    step_cost = cost / max(1, len(history.steps)) * 1000
    return Answer(
        "cost", question, f"${cost:.2f}", f"${cost:,.2f}, or ${step_cost:,.2f} for 1,000 steps.", evidence
    )


def _format_rentals(rentals: Sequence[Rental]) -> str:
    """Launches in a row with as many hosts are one."""
    groups = itertools.groupby(rentals, key=lambda rental: rental.hosts)
    return ", then ".join(
        f"{hosts} {'host' if hosts == 1 else 'hosts'} for {show_duration(sum(rental.seconds for rental in group))}"
        for hosts, group in groups
    )


def what_would_be_better(case: Case) -> Answer:
    question = "What would have made it cheaper or faster?"
    found = improvements_of(case)
    if not found and not case.is_time_measured:
        return Answer("improvements", question, "unknown", NOT_MEASURED)
    has_gpus = any(sample.get("gpus") for sample in case.history.host_samples)
    used = None if has_gpus else cpu_share(case.history)
    held_back = []
    if used is not None and used < WELL_USED * (case.time.compute + case.time.optimiser) / case.time.seconds:
        held_back = [f"the workers had too little processor time: {format_held_back(used)}"]
    if not found and held_back:
        sentence = f"Processors of its own. Nearly all time is computing, but {held_back[0]}."
        return Answer("improvements", question, "processors", sentence)
    if not found:
        sentence = "Nothing that the measurements show: nearly all time is computing."
        return Answer("improvements", question, "nothing", sentence)
    first = found[0]
    return Answer(
        "improvements",
        question,
        first.name,
        f"Most of all: {first.advice} ({_lower(first)}).",
        [f"{number}. {entry.advice}: {_lower(entry)}" for number, entry in enumerate(found, start=1)]
        + held_back,
    )


def improvements_of(case: Case) -> list[Improvement]:
    return find_improvements(case.history, case.time, case.replanning, has_overfitted=overfits(case.history))


def _lower(entry: Improvement) -> str:
    return f"{show_share(entry.saved)} less time" + (f", {entry.caveat}" if entry.caveat else "")
