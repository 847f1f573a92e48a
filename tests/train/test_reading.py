from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

from echelon.errors import DataError
from echelon.tasks.task import Slot, Task
from echelon.train.reading import SlotReader, reads_ahead


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
def reader(task: Pictures) -> Iterator[SlotReader]:
    reader = SlotReader(cast(Task, task), is_ahead=True)
    reader.mine = range(2, 4)
    yield reader
    reader.close()


def read(reader: SlotReader, task: Pictures, step: int, number: int) -> Any:
    return reader.read(step, number, task.slots(step)[number])


def test_the_next_slot_is_loaded_in_a_thread_also_that_of_the_next_step(
    reader: SlotReader, task: Pictures
) -> None:
    asked = [(1, 2), (1, 3), (2, 2), (2, 3)]
    assert [read(reader, task, *place) for place in asked] == asked
    reader.close()
    assert task.loaded[:4] == [((1, 2), "MainThread"), *((place, "reader") for place in asked[1:])]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]


def test_a_slot_that_was_not_expected_is_the_right_one_all_the_same(
    reader: SlotReader, task: Pictures
) -> None:
    asked = [(5, 2), (1, 2), (1, 3), (7, 3)]
    assert [read(reader, task, *place) for place in asked] == asked


def test_what_goes_wrong_ahead_is_raised_where_the_slot_is_asked_for(
    reader: SlotReader, task: Pictures
) -> None:
    task.damaged = (1, 3)
    assert read(reader, task, 1, 2) == (1, 2)
    with pytest.raises(DataError, match="a damaged picture"):
        read(reader, task, 1, 3)


def test_on_a_processor_slots_are_loaded_in_turn(task: Pictures) -> None:
    reader = SlotReader(cast(Task, task), is_ahead=reads_ahead(torch.device("cpu")))
    reader.mine = range(2)
    assert [read(reader, task, 1, number) for number in range(2)] == [(1, 0), (1, 1)]
    assert task.loaded == [((1, 0), "MainThread"), ((1, 1), "MainThread")]
    assert reads_ahead(torch.device("cuda", 0))
