"""Replicas that train by themselves, in real groups of processes."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from tests.pupils import Pupil, run_workers
from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe.schema import ExchangeSettings
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.local_steps import LocalSteps, replicas_of, teams

AVERAGING = ExchangeSettings(
    replicas=2, every=1, overlap=0, outer_rate=1.0, outer_momentum=0.0, outer_wire="float32"
)
DILOCO = ExchangeSettings(replicas=2, every=5, overlap=2, outer_wire="float32")


def learn(settings: ExchangeSettings | None, steps: range, group: Group) -> dict[str, Tensor]:
    """Train with local steps, or with the exact exchange where there are no settings."""
    pupil = Pupil(group, LocalSteps(group, settings) if settings else AllReduce(group))
    pupil.train(steps)
    pupil.exchange.settle()
    return pupil.result()


def go_on(settings: ExchangeSettings, folder: Path, steps: range, group: Group) -> dict[str, Tensor]:
    pupil = Pupil(group, LocalSteps(group, settings))
    pupil.go_on_from(folder)
    pupil.train(steps)
    pupil.exchange.settle()
    return pupil.result()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_agreeing_every_step_averages_the_replicas_updates(size: int, tmp_path: Path) -> None:
    """Plain descent without momentum: the mean of two replicas' updates is the update of the whole batch."""
    steps = range(1, 13)
    local = run_workers(functools.partial(learn, AVERAGING, steps), size, tmp_path / "local")
    exact = run_workers(functools.partial(learn, None, steps), 1, tmp_path / "exact")
    torch.testing.assert_close(local[0]["weights"], exact[0]["weights"], rtol=1e-4, atol=1e-6)


def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    results = {}
    for size in (1, 2, 3):
        together = run_workers(functools.partial(learn, DILOCO, range(1, 21)), size, tmp_path / str(size))
        assert all(torch.equal(each["weights"], together[0]["weights"]) for each in together), "settled"
        results[size] = together[0]
    for size in (1, 3):
        torch.testing.assert_close(results[size]["weights"], results[2]["weights"], rtol=1e-4, atol=1e-6)
    assert results[2]["losses"][-1] < 0.8 * results[2]["losses"][0]


def test_replicas_go_their_own_way_between_agreements(tmp_path: Path) -> None:
    seldom = DILOCO.model_copy(update={"every": 100, "overlap": 0})
    results = run_workers(functools.partial(unsettled, seldom), 2, tmp_path)
    assert not torch.equal(results[0]["weights"], results[1]["weights"])


def unsettled(settings: ExchangeSettings, group: Group) -> dict[str, Tensor]:
    pupil = Pupil(group, LocalSteps(group, settings))
    pupil.train(range(1, 4))
    return pupil.result()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_run_goes_on_from_a_settled_state_with_any_number_of_workers(size: int, tmp_path: Path) -> None:
    settings = DILOCO.model_copy(update={"overlap": 0})
    whole = run_workers(functools.partial(learn, settings, range(1, 21)), 2, tmp_path / "whole")
    run_workers(functools.partial(learn, settings, range(1, 11)), 2, tmp_path / "half")
    work = functools.partial(go_on, settings, tmp_path / "half", range(11, 21))
    again = run_workers(work, size, tmp_path / "again")
    if size == 2:
        assert torch.equal(again[0]["weights"], whole[0]["weights"]), "bit for bit"
    torch.testing.assert_close(again[0]["weights"], whole[0]["weights"], rtol=1e-4, atol=1e-6)


def test_after_half_a_round_momentum_carries_weights_half_as_far() -> None:
    settings = ExchangeSettings(replicas=1, every=4, overlap=0, outer_rate=0.5, outer_momentum=0.8)
    group = Group(0, 1)
    pupil = Pupil(group, LocalSteps(group, settings))
    pupil.train(range(1, 5))
    agreed, velocity = (
        tensor.clone() for tensor in (pupil.flat.weights, pupil.exchange.state().shared["velocity"])
    )
    pupil.train(range(5, 7))
    way = agreed - pupil.flat.weights
    pupil.exchange.settle()
    velocity = 0.8**0.5 * velocity + way
    torch.testing.assert_close(pupil.exchange.state().shared["velocity"], velocity)
    torch.testing.assert_close(pupil.flat.weights, agreed - 0.5 * (way + 0.5 * 0.8 * velocity))


def test_workers_and_replicas_are_shared_out() -> None:
    assert [replicas_of(rank, 2, 4) for rank in range(2)] == [range(2), range(2, 4)]
    assert [replicas_of(rank, 3, 2) for rank in range(3)] == [range(1), range(1), range(1, 2)]
    assert teams(3, 2) == [[0, 1], [2]]
    assert teams(2, 4) == [[0], [1]]
