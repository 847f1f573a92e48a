"""What workers do round the loop: how long they wait for each other, and when they continue without one."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from tests.pupils import run_workers
from tests.sshd import free_port
from torch import Tensor

from echelon.comm.group import Group, join_group
from echelon.recipe.schema import CheckpointSettings
from echelon.train import restore
from echelon.train.exchange import Exchange
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.loop import Training
from echelon.train.worker import can_continue, finish_mirror, longest_collective_s


def let_the_first_be_slow(work: Callable[[Any], None], is_over: threading.Event) -> None:
    """`work` of two workers, the first of which waits for `is_over`. They have a store and no connections, so that a
    collective, which has a limit, would fail."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    trainings = [
        SimpleNamespace(
            recipe=SimpleNamespace(checkpoint=SimpleNamespace(mirror="memory://slow")),
            run=None,
            group=Group(rank, 2, store=store),
            checkpoints=SimpleNamespace(mirror=mirror),
        )
        for rank, mirror in enumerate((SimpleNamespace(finish=lambda _heart: is_over.wait()), None))
    ]
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(work, training) for training in trainings]
        are_early = wait(ends, timeout=0.3).done
        is_over.set()
    assert not are_early
    for end in ends:
        end.result()


def test_the_others_wait_for_a_long_upload_without_a_limit() -> None:
    let_the_first_be_slow(finish_mirror, threading.Event())


def test_the_others_wait_for_a_long_download_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def fetch(*_arguments: object) -> list[str]:
        is_over.wait()
        return []

    monkeypatch.setattr(restore, "fetch_newest", fetch)
    let_the_first_be_slow(restore.Restorer.fetch_from_mirror, is_over)


def test_where_a_hang_has_no_limit_a_collective_has_none() -> None:
    assert longest_collective_s(0.0) > 30 * 24 * 3600
    assert longest_collective_s(300.0) > 300.0


def join_for_ever(port: int, group: Group) -> dict[str, Tensor]:
    """The workers of another group, which joins as a launcher's does."""
    group.barrier()  # one that leaves while the other still connects would be taken for dead
    dist.destroy_process_group()
    os.environ |= {
        "RANK": str(group.rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    joined = join_group(longest_collective_s(0.0))
    joined.await_first("coming here")
    return {"ranks": torch.tensor(joined.gather_json(joined.rank))}


def test_workers_that_wait_for_ever_get_together(tmp_path: Path) -> None:
    results = run_workers(functools.partial(join_for_ever, free_port()), 2, tmp_path)
    assert [result["ranks"].tolist() for result in results] == [[0, 1], [0, 1]]


def training_of(exchange: Exchange, size: int, **checkpoint: str) -> Training:
    """What tells whether a worker can continue without another."""
    training: Any = SimpleNamespace(
        group=Group(0, size),
        exchange=exchange,
        model=SimpleNamespace(flat=SimpleNamespace(weights=torch.zeros(1))),
        recipe=SimpleNamespace(checkpoint=CheckpointSettings.model_validate(checkpoint)),
    )
    return cast(Training, training)


def test_a_worker_can_continue_without_a_lost_one_if_it_has_all_of_the_state() -> None:
    exact = AllReduce(Group(0, 1))
    assert can_continue(training_of(exact, 3))
    assert not can_continue(training_of(Compressed(Group(0, 1), build_codec("bf16")), 3)), (
        "it owes others something"
    )
    assert not can_continue(training_of(exact, 1)), "nobody is left"
    assert not can_continue(training_of(exact, 3, mirror="s3://bucket/run"))
