"""The exact exchanges between real processes: every worker ends with the sum of all, whichever way it takes."""

from __future__ import annotations

import functools
import os
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
