"""What "auto" was found to be, on hosts that keep folders of their own."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

from echelon.comm.group import Group, Sharers
from echelon.errors import UserError
from echelon.monitor.records import RecordWriter
from echelon.recipe.compatibility import found_in
from echelon.recipe.loading import load_recipe
from echelon.recipe.schema import Recipe
from echelon.recipe.toml import dump_recipe
from echelon.resolve.exchange import choose_hosts, resolve_exchange
from echelon.resolve.exchange_choice import Measured
from echelon.resolve.run_recipe import require_one_recipe
from echelon.runfolder import RunFolder, read_json, write_json
from tests.pupils import run_workers
from tests.sample_recipe import sample_recipe

FOUND = (
    "train.exchange=compressed",
    "exchange.wire=int8",
    "exchange.hosts=1",
    "exchange.bucket_bytes=1048576",
)


def measure_nothing(_recipe: Recipe) -> Measured:
    raise AssertionError("it has been found before")


def resolve(folder: Path, group: Group) -> dict[str, Tensor]:
    """Two hosts: the first was cut off before it heard what was found."""
    os.environ["LOCAL_RANK"] = "0"
    run = RunFolder(folder / f"host-{group.rank}")
    run.create()
    settings = FOUND if group.rank == 1 else ("train.exchange=auto",)
    run.recipe.write_text(dump_recipe(sample_recipe(*settings)))
    own = Group(group.rank, group.size, sharers=Sharers(0, 1))
    records = RecordWriter(folder / f"records-{group.rank}")
    recipe = resolve_exchange(run, own, records, measure_nothing)
    records.close()
    assert recipe == load_recipe(run.recipe)
    return {}


def test_a_host_that_was_cut_off_takes_what_the_others_have_found(tmp_path: Path) -> None:
    run_workers(functools.partial(resolve, tmp_path), 2, tmp_path / "workers")
    first, second = (RunFolder(tmp_path / f"host-{rank}") for rank in range(2))
    assert load_recipe(first.recipe) == load_recipe(second.recipe) == sample_recipe(*FOUND)
    assert read_json(first.exchange) == found_in(load_recipe(second.recipe))


def compare(group: Group) -> dict[str, Tensor]:
    """Two hosts: the second's recipe is longer, and then has another batch."""
    longer, other = ("train.steps=7", "checkpoint.every=3"), ("train.batch_tokens=2048",)
    require_one_recipe(sample_recipe(*longer if group.rank else ()), group)
    with pytest.raises(UserError, match=r"of worker 1 has another recipe .* \(train\.batch_tokens differ\)"):
        require_one_recipe(sample_recipe(*other if group.rank else ()), group)
    return {}


def test_workers_whose_folders_have_recipes_that_learn_something_else_do_not_train_together(
    tmp_path: Path,
) -> None:
    assert run_workers(compare, 2, tmp_path / "workers") == [{}, {}]


def choose_of_three(folder: Path, group: Group) -> dict[str, Tensor]:
    """Three hosts with folders of their own, of which only the second has kept what was measured."""
    os.environ["LOCAL_RANK"] = "0"
    run = RunFolder(folder / f"host-{group.rank}")
    run.create()
    if group.rank == 1:
        write_json(run.exchange, {"exchange": "all_reduce", "alone_seconds": {"a": 1.5, "b": 0.5, "c": 0.25}})
    with mock.patch("socket.gethostname", return_value="abc"[group.rank]):
        chosen = [choose_hosts(run, group, count) for count in (1, 2, None)]
    same = choose_hosts(run, group, 1)  # where all hosts are this machine, they have one name
    return {"chosen": torch.tensor([*chosen[0], *chosen[1], *chosen[2], *same])}


def test_the_fastest_hosts_train_and_the_first_if_nothing_tells_them_apart(tmp_path: Path) -> None:
    results = run_workers(functools.partial(choose_of_three, tmp_path), 3, tmp_path / "workers")
    assert [result["chosen"].tolist() for result in results] == [[2, 1, 2, 0, 1, 2, 0]] * 3
