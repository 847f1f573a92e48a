"""What workers do round the loop: how long they wait for each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from echelon.comm.group import Group
from echelon.train import resume
from echelon.train.worker import finish_mirror


def let_the_first_be_slow(work: Callable[[Any], None], is_over: threading.Event) -> None:
    """`work` of two workers, the first of which waits for `is_over`. They have a store and no connections, so that a
    collective, which has a limit, would fail."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    trainings = [
        SimpleNamespace(
            recipe=SimpleNamespace(checkpoint=SimpleNamespace(mirror="memory://slow")),
            run=None,
            group=Group(rank, 2, store=store),
            keeper=SimpleNamespace(mirror=mirror),
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

    monkeypatch.setattr(resume, "fetch_newest", fetch)
    let_the_first_be_slow(resume.fetch_from_mirror, is_over)
