"""The exact exchanges between real processes: every worker ends with the sum of all, whichever way it takes."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from echelon.comm import shared
from echelon.comm.group import Group
from echelon.train.exchange import build_exact
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.buckets import BUCKET_BYTES
from echelon.train.exchange.host_sum import HostSum
from echelon.train.flat import FlatParameters

STEPS = 3


def work(rank: int, size: int, store: str, way: str, results: Any) -> None:
    """Some steps of a worker; its gradient at step n is n everywhere, times one more than its rank."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    if way == "no shared memory" and rank == size - 1:
        mock.patch.object(shared, "_open_file", return_value=None).start()
    os.environ["LOCAL_WORLD_SIZE"] = str(size if way != "all-reduce" else 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 3))
    flat, exchange = FlatParameters(model), build_exact(Group(rank, size), BUCKET_BYTES)
    exchange.attach(flat, None, lambda: None)
    sums = []
    for step in range(1, STEPS + 1):
        flat.zero()
        with exchange.slot(last=True):
            total = torch.cat([parameter.flatten() for parameter in model.parameters()]).sum()
            (total * step * (rank + 1)).backward()  # type: ignore[no-untyped-call]

        def apply() -> None:
            sums.append(sorted(set(flat.reduced.tolist())))
            flat.gradients.mul_(0.5)  # as clipping does: nobody may see this who still sums

        exchange.update(apply)
    is_in_memory = isinstance(exchange, HostSum) and exchange.is_in_memory
    assert exchange.name == ("host_sum" if is_in_memory else "all_reduce")
    results.put((rank, sums, is_in_memory, type(exchange) is AllReduce))
    dist.barrier()


@pytest.mark.parametrize("way", ["memory", "all-reduce", "no shared memory"])
def test_every_worker_gets_the_sum_of_all(tmp_path: Path, way: str) -> None:
    size = 2
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    arguments = (size, str(tmp_path / "store"), way, results)
    processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    found = sorted(results.get() for _ in processes)
    for process in processes:
        process.join()

    expected = [[0.0, 3.0 * step] for step in range(1, STEPS + 1)]  # the extras are zero
    assert [sums for _, sums, _, _ in found] == [expected] * size
    assert {in_memory for _, _, in_memory, _ in found} == {way == "memory"}
    assert {is_all_reduce for _, _, _, is_all_reduce in found} == {way == "all-reduce"}
    left = [path for process in processes for path in Path("/dev/shm").glob(f"echelon-{process.pid}-*")]
    assert left == []
