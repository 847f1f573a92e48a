"""Room for checkpoints, before the first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from echelon.commands.disk import judge_room
from echelon.errors import RunError
from echelon.runfolder import RunFolder

RUN = RunFolder(Path("runs/a"))
MB = 1_000_000


def test_a_disk_without_room_for_one_checkpoint_is_an_error_before_the_first_step() -> None:
    with pytest.raises(
        RunError, match=r"a checkpoint of this model needs 46\.0 MB, and the disk has 20\.0 MB free"
    ):
        judge_room(20 * MB, 46 * MB, keep=5, there=0, run=RUN)


def test_a_disk_that_cannot_keep_them_all_is_pointed_out() -> None:
    note = judge_room(100 * MB, 46 * MB, keep=5, there=0, run=RUN)
    assert note is not None
    assert note.startswith("note: the run keeps up to 7 checkpoints of 46.0 MB, which takes 322.0 MB more")


def test_checkpoints_that_are_there_need_no_room() -> None:
    assert judge_room(100 * MB, 46 * MB, keep=5, there=6, run=RUN) is None
    assert judge_room(400 * MB, 46 * MB, keep=5, there=0, run=RUN) is None
