"""BatchNorm's statistics through every exchange: exact, whatever becomes of the gradients."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from tests.pupils import SLOTS, run_workers
from torch import Tensor, nn

from echelon.comm.group import Group
from echelon.models.batch_norm import BatchNorm
from echelon.recipe import schema
from echelon.train.exchange import Exchange, build_exact
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.exchange.local_steps import LocalSteps
from echelon.train.exchange.low_rank import LowRank
from echelon.train.flat import FlatParameters
from echelon.train.optimiser import FlatOptimiser
from echelon.train.statistics import SlotStatistics

STEPS = 10


def build(kind: str, group: Group) -> Exchange:
    match kind:
        case "compressed":
            return Compressed(group, build_codec("int8"))
        case "low_rank":
            return LowRank(group, 1, build_codec("bf16"), seed=1)
        case "local":
            return LocalSteps(group, schema.ExchangeSettings(replicas=2, every=4, overlap=2))
        case _:
            return build_exact(group)


def measure(kind: str, group: Group) -> dict[str, Tensor]:
    """The running statistics of a network that does not learn, so that only they are exchanged."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(24, 16), BatchNorm(16), nn.Linear(16, 32))
    statistics = SlotStatistics(model, SLOTS)
    flat, exchange = FlatParameters(model, SLOTS, statistics.size), build(kind, group)
    statistics.attach(flat)
    optimiser = FlatOptimiser(schema.Sgd(kind="sgd"), flat)
    exchange.attach(flat, optimiser, lambda: None)
    for step in range(1, STEPS + 1):
        for update in exchange.updates(step, SLOTS):
            must_repeat = True
            while must_repeat:
                flat.zero()
                for slot in update.mine:
                    dice = torch.Generator().manual_seed(100 * step + slot)
                    with exchange.slot(last=slot == update.mine[-1]):
                        loss = model(torch.randn(8, 24, generator=dice)).square().sum()
                        statistics.note(slot)  # before backward, which sends the last bucket
                        loss.backward()
                must_repeat = exchange.reduce().must_repeat
            statistics.apply(step, update.slots)
            exchange.after_update()
    exchange.settle()
    return {"running": flat.running.clone()}


@pytest.mark.parametrize(
    ("kind", "size"), [("all_reduce", 2), ("all_reduce", 3), ("compressed", 3), ("low_rank", 3)]
)
def test_exchanges_of_gradients_leave_statistics_exact(kind: str, size: int, tmp_path: Path) -> None:
    alone = measure("all_reduce", Group(0, 1))["running"]
    for worker in run_workers(functools.partial(measure, kind), size, tmp_path):
        assert torch.equal(worker["running"], alone)


def test_replicas_agree_on_the_mean_of_their_statistics(tmp_path: Path) -> None:
    exact = measure("all_reduce", Group(0, 1))["running"]
    alone = measure("local", Group(0, 1))["running"]
    torch.testing.assert_close(alone[:16], exact[:16], rtol=0, atol=0.1)
    for size in (2, 3):
        for worker in run_workers(functools.partial(measure, "local"), size, tmp_path / str(size)):
            torch.testing.assert_close(worker["running"], alone, rtol=1e-6, atol=1e-6)
