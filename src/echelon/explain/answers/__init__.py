"""The questions that everybody asks of a training run, each answered from its measurements in a plain sentence."""

from __future__ import annotations

from collections.abc import Callable

from echelon.explain.answers.case import Answer, Case
from echelon.explain.answers.classes import which_classes
from echelon.explain.answers.learning import is_it_overfitting, is_it_trained, what_rate
from echelon.explain.answers.money import improvements_of, what_did_it_cost, what_would_be_better
from echelon.explain.answers.network import (
    how_does_it_scale,
    how_much_traffic,
    was_it_the_network,
    who_held_up,
)
from echelon.explain.answers.things import how_big_is_the_data, what_is_a_checkpoint
from echelon.explain.answers.time import how_long, were_devices_used, what_is_a_step

__all__ = ["Answer", "Case", "answer_all", "improvements_of"]


def answer_all(case: Case) -> list[Answer]:
    """Every question that the run can answer."""
    questions: list[Callable[[Case], Answer | None]] = [
        how_long,
        what_is_a_step,
        is_it_trained,
        is_it_overfitting,
        which_classes,
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
