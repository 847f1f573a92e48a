"""The exact exchanges between real processes: every worker ends with the sum of all, whichever way it takes."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from tests.pupils import run_workers
from torch import Tensor, nn

from echelon.comm import shared
from echelon.comm.group import Group
from echelon.train.exchange import build_exact
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES
from echelon.train.exchange.host_sum import HostSum
from echelon.train.flat import FlatParameters

STEPS = 3


def work(way: str, group: Group) -> dict[str, Tensor]:
    """Some steps of a worker; its gradient at step n is n everywhere, times one more than its rank."""
    if way == "no shared memory" and group.rank == group.size - 1:
        mock.patch.object(shared, "_open_file", return_value=None).start()
    os.environ["LOCAL_WORLD_SIZE"] = str(group.size if way != "all-reduce" else 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 3))
    flat, exchange = FlatParameters(model, group.size), build_exact(group, BUCKET_BYTES)
    exchange.attach(flat, None, lambda: None)
    sums = []
    for step in range(1, STEPS + 1):
        must_repeat = True
        while must_repeat:
            flat.zero()
            with exchange.slot(last=True):
                total = torch.cat([parameter.flatten() for parameter in model.parameters()]).sum()
                (total * step * (group.rank + 1)).backward()  # type: ignore[no-untyped-call]
            must_repeat = exchange.reduce().must_repeat
        (total_here,) = set(flat.gradients.tolist())
        sums.append(total_here)
        flat.gradients.mul_(0.5)  # as clipping does: nobody may see this who still sums
        exchange.after_update()
    is_in_memory = isinstance(exchange, HostSum) and exchange.is_in_memory
    assert exchange.traits.name == ("host_sum" if is_in_memory else "all_reduce")
    is_all_reduce = type(exchange) is AllReduce
    return {
        "sums": torch.tensor(sums),
        "ways": torch.tensor([is_in_memory, is_all_reduce]),
        "process": torch.tensor(os.getpid()),
    }


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("way", ["memory", "all-reduce", "no shared memory"])
def test_every_worker_gets_the_sum_of_all(tmp_path: Path, way: str, size: int) -> None:
    for result in (results := run_workers(functools.partial(work, way), size, tmp_path)):
        total = sum(range(1, size + 1))
        assert result["sums"].tolist() == [float(total * step) for step in range(1, STEPS + 1)]
        assert result["ways"].tolist() == [way == "memory", way == "all-reduce"]
    left = [path for result in results for path in Path("/dev/shm").glob(f"echelon-{result['process']}-*")]
    assert left == []


def slow_down(group: Group) -> dict[str, Tensor]:
    """Ten steps of eight slots, in which the last worker takes far longer for a slot than the others."""
    model = nn.Linear(40, 30)
    flat, exchange = FlatParameters(model, 8), AllReduce(group)
    exchange.attach(flat, None, lambda: None)
    shares, sums = [], []
    for step in range(1, 11):
        (update,) = exchange.updates(step, 8)
        must_repeat = True
        while must_repeat:
            flat.zero()
            for slot in update.mine:
                with exchange.slot(last=slot == update.mine[-1]):
                    time.sleep(0.05 if group.rank == group.size - 1 else 0.001)
                    model(torch.full((1, 40), slot + 0.1)).sum().backward()
            must_repeat = exchange.reduce().must_repeat
        shares.append(len(update.mine))
        sums.append(flat.gradients.clone())
    return {"shares": torch.tensor(shares), "sums": torch.stack(sums)}


def test_slots_are_dealt_by_speed_with_the_same_sums(tmp_path: Path) -> None:
    results = run_workers(slow_down, 3, tmp_path)
    shares = torch.stack([result["shares"] for result in results])
    assert shares[:, 0].tolist() == [2, 3, 3]
    assert shares[2, -1] < shares[2, 0]
    assert (shares.sum(0) == 8).all()
    for result in results:
        assert all(torch.equal(step, results[0]["sums"][0]) for step in result["sums"])
