"""Groups made of groups, in real processes."""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path

import pytest
import torch
from tests.pupils import Pupil, run_workers
from torch import Tensor

from echelon.comm.group import Group
from echelon.recipe.schema import ExchangeSettings
from echelon.train.exchange import Exchange
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.exchange.local_steps import LocalSteps
from echelon.train.exchange.parameter_server import ParameterServer


def sum_of(group: Group) -> float:
    total = torch.tensor([float(group.rank + 1)])
    group.all_reduce(total)
    return total.item()


def split(group: Group) -> dict[str, Tensor]:
    """Parts of different sizes, then all together again, and a part of a part."""
    part = group.part([[0], [1, 2, 3]])
    again = group.channel()
    of_part = part.part([[0, 1], [2]]) if part.size == 3 else part
    word = torch.tensor([group.rank])
    part.broadcast(word)
    return {"sums": torch.tensor([sum_of(each) for each in (part, again, of_part)]), "word": word}


def test_parts_of_any_size_leave_the_others_as_they_are(tmp_path: Path) -> None:
    results = run_workers(split, 4, tmp_path)
    assert [result["sums"].tolist() for result in results] == [[1, 10, 1], [6, 10, 3], [6, 10, 3], [6, 10, 1]]
    assert [result["word"].item() for result in results] == [0, 1, 1, 1]


def train_on_first_host(kind: str, everybody: Group) -> dict[str, Tensor]:
    """Two hosts with two workers each, of which one trains and one stands by."""
    os.environ["LOCAL_RANK"] = str(everybody.rank % 2)
    group = everybody.of_hosts([0])
    if group is None:
        return {"size": torch.tensor(0)}
    pupil = Pupil(group, build(kind, group))
    pupil.train(range(1, 4))
    pupil.exchange.settle()
    return {"size": torch.tensor(group.size), "losses": torch.tensor(pupil.losses)}


def wait_for_first(file: Path, everybody: Group) -> dict[str, Tensor]:
    """Two hosts with two workers each; on the first of them one writes a file while the other waits."""
    os.environ["LOCAL_RANK"] = str(everybody.rank % 2)
    group = everybody.of_hosts([0])
    if group is None:
        return {}
    if group.is_first:
        time.sleep(0.5)
        file.touch()
    group.await_first("writing")
    return {"is_written": torch.tensor(file.exists())}


def test_the_others_of_a_part_wait_for_its_first(tmp_path: Path) -> None:
    results = run_workers(functools.partial(wait_for_first, tmp_path / "file"), 4, tmp_path)
    assert [bool(result["is_written"]) for result in results[:2]] == [True, True]


def add_on_hosts(hosts: list[int], everybody: Group) -> dict[str, Tensor]:
    """Three hosts with two workers, one and one."""
    os.environ["LOCAL_RANK"] = "1" if everybody.rank == 1 else "0"
    group = everybody.of_hosts(hosts)
    if group is None:
        return {"place": torch.tensor([-1, 0, 0])}
    ranks = torch.tensor([everybody.rank])
    group.all_reduce(ranks)
    return {"place": torch.tensor([group.rank, group.sharers.rank, int(ranks)])}


@pytest.mark.parametrize(
    ("hosts", "places"),
    [
        ([0], [[0, 0, 1], [1, 1, 1], [-1, 0, 0], [-1, 0, 0]]),
        ([2], [[-1, 0, 0], [-1, 0, 0], [-1, 0, 0], [0, 0, 3]]),
        ([0, 2], [[0, 0, 4], [1, 1, 4], [-1, 0, 0], [2, 2, 4]]),
        ([0, 1, 2], [[rank, rank, 6] for rank in range(4)]),
    ],
)
def test_any_of_the_hosts_may_train_while_the_others_stand_by(
    tmp_path: Path, hosts: list[int], places: list[list[int]]
) -> None:
    results = run_workers(functools.partial(add_on_hosts, hosts), 4, tmp_path)
    assert [result["place"].tolist() for result in results] == places


def build(kind: str, group: Group) -> Exchange:
    match kind:
        case "compressed":
            return Compressed(group, build_codec("int8"))
        case "local":
            return LocalSteps(group, ExchangeSettings(every=2, overlap=1))
        case _:
            return ParameterServer(group, ExchangeSettings())


def test_a_host_that_stands_by_need_not_join_what_the_others_make(tmp_path: Path) -> None:
    for kind in ("compressed", "local", "parameter_server"):
        results = run_workers(functools.partial(train_on_first_host, kind), 4, tmp_path / kind)
        assert [result["size"].item() for result in results] == [2, 2, 0, 0]
        assert results[0]["losses"].isfinite().all()
