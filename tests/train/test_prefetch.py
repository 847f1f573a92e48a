from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from echelon.errors import DataError
from echelon.tasks.task import Slot, Task
from echelon.train.prefetch import SlotPrefetch, gains_by_prefetch


class Pictures:
    """A task of four slots a step that notes which thread has loaded what."""

    def __init__(self) -> None:
        self.loaded: list[tuple[Any, str]] = []
        self.damaged: Any = None

    def slots(self, step: int) -> list[Slot]:
        return [Slot((step, number), 1) for number in range(4)]

    def load(self, slot: Slot) -> Any:
        self.loaded.append((slot.plan, threading.current_thread().name.partition("_")[0]))
        if slot.plan == self.damaged:
            raise DataError("a damaged picture")
        return slot.plan


@pytest.fixture
def task() -> Pictures:
    return Pictures()


@pytest.fixture
def prefetch(task: Pictures) -> Iterator[SlotPrefetch]:
    prefetch = SlotPrefetch(cast(Task, task), is_ahead=True)
    yield prefetch
    prefetch.close()


def read(prefetch: SlotPrefetch, task: Pictures, step: int, number: int) -> Any:
    return prefetch.read(step, number, task.slots(step)[number], range(2, 4))


def test_the_next_slot_is_loaded_in_a_thread_also_that_of_the_next_step(
    prefetch: SlotPrefetch, task: Pictures
) -> None:
    asked = [(1, 2), (1, 3), (2, 2), (2, 3)]
    assert [read(prefetch, task, *place) for place in asked] == asked
    prefetch.close()
    assert task.loaded[:4] == [((1, 2), "MainThread"), *((place, "prefetch") for place in asked[1:])]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_a_slot_that_was_not_expected_is_the_right_one_all_the_same(
    prefetch: SlotPrefetch, task: Pictures
) -> None:
    asked = [(5, 2), (1, 2), (1, 3), (7, 3)]
    assert [read(prefetch, task, *place) for place in asked] == asked


def test_what_goes_wrong_ahead_is_raised_where_the_slot_is_asked_for(
    prefetch: SlotPrefetch, task: Pictures
) -> None:
    task.damaged = (1, 3)
    assert read(prefetch, task, 1, 2) == (1, 2)
    with pytest.raises(DataError, match="a damaged picture"):
        read(prefetch, task, 1, 3)


def test_on_a_processor_slots_are_loaded_in_turn(task: Pictures) -> None:
    prefetch = SlotPrefetch(cast(Task, task), is_ahead=gains_by_prefetch(torch.device("cpu")))
    assert [prefetch.read(1, number, task.slots(1)[number], range(2)) for number in range(2)] == [
        (1, 0),
        (1, 1),
    ]
    assert task.loaded == [((1, 0), "MainThread"), ((1, 1), "MainThread")]
    assert gains_by_prefetch(torch.device("cuda", 0))
