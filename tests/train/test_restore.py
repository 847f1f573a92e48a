"""What workers take over from each other's disks, in real groups of processes."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.pupils import Pupil, run_workers
from torch import Tensor

from echelon.comm.group import Group
from echelon.errors import CheckpointError, TrainingError
from echelon.files.checkpoint_layout import Best, TrainingState
from echelon.runfolder import RunFolder
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.precision import Precision
from echelon.train.restore import Newest, Restorer, Survivor


def restorer_of(pupil: Pupil, run: Any = None) -> Restorer:
    model: Any = SimpleNamespace(
        module=pupil.model,
        flat=pupil.flat,
        optimiser=pupil.optimiser,
        average=SimpleNamespace(averages=[]),
        precision=Precision("float32", torch.device("cpu")),
    )
    unused: Any = None
    records: Any = SimpleNamespace(write=lambda *_, **__: None)
    return Restorer(unused, run, pupil.group, records, model, pupil.exchange)


def lose_one_disk(group: Group) -> dict[str, Tensor]:
    """Three workers owe something; the first one's host has lost its checkpoint, the other's has it."""
    pupil = Pupil(group, Compressed(group, build_codec("int8")))
    pupil.train(range(1, 4))
    owed = f"own/error/{group.rank}-of-3"
    before = pupil.result()[owed]
    restorer = restorer_of(pupil)
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


def as_survivor(pupil: Pupil, state: TrainingState) -> Survivor:
    """What a worker has kept when it is about to join another group, for which its exchange is attached anew."""
    kept = Survivor(state, pupil.exchange.state().shared)
    pupil.flat.release()
    pupil.exchange = AllReduce(pupil.group)
    pupil.exchange.attach(pupil.flat, pupil.optimiser, lambda: None)
    return kept


def heal(folder: Path, group: Group) -> dict[str, Tensor]:
    """Worker 0 has taken three steps, worker 1 four, when worker 2 was lost and another one is in its place."""
    pupil = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    steps = 3 + group.rank
    if group.rank < 2:
        pupil.train(range(1, steps + 1))
    pupil.group = group
    survivor = as_survivor(pupil, TrainingState(step=steps)) if group.rank < 2 else None
    if survivor is None:
        as_survivor(pupil, TrainingState())
    restorer = restorer_of(pupil, RunFolder(folder))
    survivors = restorer.find_survivors(survivor)
    assert survivors is not None
    state = restorer.heal(survivors, survivor).state
    pupil.train(range(state.step + 1, 8))
    return {**pupil.result(), "step": torch.tensor(state.step), "is_here": torch.tensor(survivors.is_here)}


def test_who_is_behind_and_who_is_new_are_healed_by_who_is_ahead(tmp_path: Path) -> None:
    whole = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    whole.train(range(1, 8))
    results = run_workers(functools.partial(heal, tmp_path), 3, tmp_path / "results")
    assert [int(result["step"]) for result in results] == [4, 4, 4]
    assert [bool(result["is_here"]) for result in results] == [False, True, False]
    for result in results:
        for name in ("weights", "shared/largest_gradients", "optimiser/momentum_buffer/0.weight"):
            assert torch.equal(result[name], whole.result()[name]), name


def differ(folder: Path, group: Group) -> dict[str, Tensor]:
    """Both think that they are as far, but one number is not the same."""
    pupil = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    pupil.train(range(1, 3))
    pupil.optimiser.state()["momentum_buffer/0.weight"][0, 0] += group.rank
    pupil.group = group
    survivor = as_survivor(pupil, TrainingState(step=2))
    restorer = restorer_of(pupil, RunFolder(folder))
    survivors = restorer.find_survivors(survivor)
    assert survivors is not None
    with pytest.raises(TrainingError, match="differ from the others"):
        restorer.heal(survivors, survivor)
    return {}


def test_workers_that_differ_do_not_continue(tmp_path: Path) -> None:
    run_workers(functools.partial(differ, tmp_path), 2, tmp_path / "results")


def lose_the_best(folder: Path, group: Group) -> dict[str, Tensor]:
    pupil = Pupil(Group(0, 1), AllReduce(Group(0, 1)))
    pupil.group = group
    state = TrainingState(step=2, best=Best(1, "loss", 3.0))
    survivor = as_survivor(pupil, state)
    restorer = restorer_of(pupil, RunFolder(folder))
    survivors = restorer.find_survivors(survivor)
    assert survivors is not None
    with pytest.raises(CheckpointError, match="the best checkpoint"):
        restorer.heal(survivors, survivor)
    return {}


def test_training_goes_back_if_the_best_checkpoint_was_not_written_yet(tmp_path: Path) -> None:
    run_workers(functools.partial(lose_the_best, tmp_path), 2, tmp_path / "results")
