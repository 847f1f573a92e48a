"""Ctrl-C at every line of `cloud up` and `cloud down`: nothing that costs is left without a word."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from rich.console import Console

from echelon.cloud import lifecycle, parts
from echelon.cloud.aws import aws_cluster
from echelon.cloud.aws.calls import Clients
from echelon.cloud.journal import known_clusters
from echelon.commands import cloud
from echelon.errors import EchelonError
from tests.cloud.faults import forget_ended_machines
from tests.cloud.server import everything_left

pytestmark = pytest.mark.slow
CLUSTER = 'name = "wmt"\ntype = "g4dn.2xlarge"\nshared = false\nssh_from = "203.0.113.7"\n'
INTERRUPTED = {module.__file__ for module in (cloud, lifecycle, parts, aws_cluster)}


@contextmanager
def ctrl_c_at(moment: int) -> Iterator[list[str]]:
    """Press Ctrl-C when the program reaches its `moment`-th new line; yields the lines up to there."""
    lines, before = list[str](), sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in INTERRUPTED:
            return None
        line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        if event == "line" and line not in lines:
            lines.append(line)
            if len(lines) == moment:
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def every_moment(act: Callable[[], object]) -> Iterator[tuple[str, str]]:
    """Act again and again, with Ctrl-C one line later each time; the line, and what the user was told."""
    for moment in itertools.count(1):
        said = ""
        with ctrl_c_at(moment) as lines:
            try:
                act()
            except KeyboardInterrupt:
                said = "interrupted"
            except EchelonError as error:
                said = str(error)
        if len(lines) < moment:
            return
        yield lines[-1], said


@pytest.fixture
def file(aws: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cloud, "Clients", lambda region: aws)
    monkeypatch.setattr(cloud, "make_ready", lambda cluster, console: None)
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER)
    return path


def up(file: Path) -> None:
    cloud.up(file, lambda question: True, Console(quiet=True))


def down() -> None:
    cloud.down("wmt", None, lambda question: True, Console(quiet=True))


def test_up_leaves_nothing(file: Path) -> None:
    seen = list[str]()
    for line, said in every_moment(lambda: up(file)):
        seen.append(line)
        assert said.startswith("interrupted"), line
        assert everything_left() == [], line
        assert known_clusters() == [], line
        forget_ended_machines()
    assert len(seen) > 50


def test_up_again_keeps_what_was_there_and_says_so(file: Path) -> None:
    up(file)
    there, tells_of_costs = everything_left(), list[bool]()
    for line, said in every_moment(lambda: up(file)):
        assert said.startswith("interrupted"), line
        assert everything_left() == there, line
        tells_of_costs.append("`echelon cloud down wmt`" in said)
    assert tells_of_costs == sorted(tells_of_costs), "from some line on, always"
    assert tells_of_costs[-1]


def test_down_says_what_is_left(file: Path) -> None:
    up(file)
    there = everything_left()
    for line, said in every_moment(down):
        left = everything_left()
        assert left in ([], there) or "`echelon cloud down wmt` tries again" in said, line
        if left != there:
            if known_clusters():
                down()
            forget_ended_machines()
            up(file)
            there = everything_left()
    assert everything_left() == []
