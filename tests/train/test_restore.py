"""What workers take over from each other's disks, in real groups of processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tests.pupils import Pupil, run_workers
from torch import Tensor

from echelon.comm.group import Group
from echelon.files.checkpoint_layout import TrainingState
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.precision import Precision
from echelon.train.restore import Newest, Restorer


def lose_one_disk(group: Group) -> dict[str, Tensor]:
    """Three workers owe something; the first one's host has lost its checkpoint, the other's has it."""
    pupil = Pupil(group, Compressed(group, build_codec("int8")))
    pupil.train(range(1, 4))
    owed = f"own/error/{group.rank}-of-3"
    before = pupil.result()[owed]
    model: Any = SimpleNamespace(
        module=pupil.model,
        flat=pupil.flat,
        optimiser=pupil.optimiser,
        average=SimpleNamespace(averages=[]),
        precision=Precision("float32", torch.device("cpu")),
    )
    unused: Any = None
    restorer = Restorer(unused, unused, group, unused, model, pupil.exchange)
    newest, own = Newest(3, 1, group.rank > 0, False), TrainingState(step=3 if group.rank else 0)
    state = restorer.pass_on(newest, own, pupil.optimiser.state())
    return {"before": before, "after": pupil.result()[owed], "step": torch.tensor(state.step)}


def test_what_a_worker_owes_is_lost_only_with_its_own_disk(tmp_path: Path) -> None:
    results = run_workers(lose_one_disk, 3, tmp_path)
    assert [int(result["step"]) for result in results] == [3, 3, 3]
    assert all(result["before"].abs().max() > 0 for result in results)
    assert not results[0]["after"].any()
    for result in results[1:]:
        assert torch.equal(result["after"], result["before"])
