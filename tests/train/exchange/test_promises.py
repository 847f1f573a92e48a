"""The table of docs/reliability.md that says what each exchange promises, compared with the exchanges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from echelon.comm.group import Group
from echelon.recipe.schema import ExchangeName, ExchangeSettings
from echelon.train.exchange import Exchange
from echelon.train.exchange.all_reduce import AllReduce
from echelon.train.exchange.codecs import build_codec
from echelon.train.exchange.compressed import Compressed
from echelon.train.exchange.hierarchical import Hierarchical
from echelon.train.exchange.host_sum import HostSum
from echelon.train.exchange.local_steps import LocalSteps
from echelon.train.exchange.low_rank import LowRank
from echelon.train.exchange.parameter_server import ParameterServer
from echelon.train.exchange.sharded import Sharded

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def rows() -> list[list[str]]:
    """The cells of each row below the table's head."""
    section = PAGE.partition("## What each exchange promises")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def name_of(row: list[str]) -> str:
    return row[0].split("`")[1] + (" shared out" if "train.shard" in row[0] else "")


def test_every_exchange_has_a_row() -> None:
    exchanges = {*get_args(ExchangeName), "all_reduce shared out"} - {"auto"}
    assert {name_of(row) for row in rows()} == exchanges


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_row_has_its_tests(row: list[str]) -> None:
    files = [ROOT / name.strip() for name in row[4].split(",")]
    assert files
    for file in files:
        assert file.is_file()


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("all_reduce", AllReduce),
        ("all_reduce", HostSum),
        ("all_reduce", lambda group: Hierarchical(group, 2)),
        ("all_reduce shared out", lambda _: Sharded(Group(0, 2), is_one_host=True)),
        ("compressed", lambda group: Compressed(group, build_codec("bf16"))),
        ("low_rank", lambda group: LowRank(group, 4, build_codec("bf16"), 1)),
        ("local", lambda group: LocalSteps(group, ExchangeSettings())),
        ("parameter_server", lambda group: ParameterServer(group, ExchangeSettings())),
    ],
)
def test_the_table_says_who_continues_without_a_lost_worker(
    name: str, build: Callable[[Group], Exchange]
) -> None:
    promised = {row[3] for row in rows() if name_of(row) == name}
    assert promised == {"the others continue" if build(Group(0, 1)).traits.is_replicated else "all restart"}
