"""The usual questions about a training run, each answered from its measurements in a plain sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from echelon.explain.answers.case import Answer, Case
from echelon.explain.answers.classes import which_classes
from echelon.explain.answers.convergence import is_it_overfitting, is_it_trained, what_rate
from echelon.explain.answers.money import improvements_of, what_did_it_cost, what_would_be_better
from echelon.explain.answers.network import (
    how_does_it_scale,
    how_much_traffic,
    was_it_the_network,
    who_held_up,
)
from echelon.explain.answers.storage import (
    how_big_is_a_checkpoint,
    how_big_is_the_data,
    what_is_a_checkpoint,
)
from echelon.explain.answers.time import how_long, were_devices_used, what_is_a_step

__all__ = ["Answer", "Case", "answer_all", "improvements_of"]

CLASSIC: tuple[Callable[[Case], Answer], ...] = (
    how_long,
    is_it_trained,
    is_it_overfitting,
    were_devices_used,
    was_it_the_network,
    what_rate,
    how_big_is_the_data,
    what_is_a_checkpoint,
    how_big_is_a_checkpoint,
    what_is_a_step,
    how_much_traffic,
)
"""The questions of the classic assignment on distributed training, in its order."""
FURTHER: tuple[Callable[[Case], Answer | None], ...] = (
    which_classes,
    who_held_up,
    how_does_it_scale,
    what_did_it_cost,
    what_would_be_better,
)


def answer_all(case: Case, further: Sequence[Answer] = ()) -> list[Answer]:
    """The eleven classic questions by number, then `further` and every other question that the run can answer."""
    numbered = [replace(question(case), number=number) for number, question in enumerate(CLASSIC, start=1)]
    found = [question(case) for question in FURTHER]
    return [*numbered, *further, *(answer for answer in found if answer is not None)]
